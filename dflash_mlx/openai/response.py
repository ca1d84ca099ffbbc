"""Results and events of an engine as the bodies of Chat Completions answers.

It must not know requests, sockets or clients.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.engine.chat import ChatEvent, Done
from dflash_mlx.engine.events import ContentDelta, ReasoningDelta, ToolCallDelta
from dflash_mlx.engine.stream import Result

_FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}


def new_id() -> str:
    """Return a new id of an answer."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def completion(result: Result, answer_id: str, model: str) -> dict[str, Any]:
    """Return a whole answer: a `chat.completion` object.

    Args:
        result: the answer.
        answer_id: id of the answer.
        model: name to report as the model.
    """
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if result.tool_calls and not result.content else result.content,
        "refusal": None,
    }
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.tool_calls:
        message["tool_calls"] = [call.as_message() for call in result.tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(result),
    }
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(result),
    }


def usage(result: Result) -> dict[str, Any]:
    """Return the token counts of an answer; draft tokens that were not accepted do not count."""
    counts = {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.generated_tokens,
        "total_tokens": result.prompt_tokens + result.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }
    if predicted := result.stats.sources.get("prediction"):
        counts["completion_tokens_details"] = {
            "accepted_prediction_tokens": predicted.accepted,
            "rejected_prediction_tokens": predicted.drafted - predicted.accepted,
        }
    return counts


@dataclass
class ChunkWriter:
    """Turns the events of one answer into `chat.completion.chunk` objects.

    The deltas of all chunks, joined, equal the body that `completion` returns.

    Args:
        model: name to report as the model.
        include_usage: whether a last chunk without choices has the token counts.
        answer_id: id of the answer, the same in all chunks.
    """

    model: str
    include_usage: bool = False
    answer_id: str = field(default_factory=new_id)
    _created: int = field(default_factory=lambda: int(time.time()))
    _started: bool = False

    def write(self, event: ChatEvent) -> Iterator[dict[str, Any]]:
        """Yield the chunks for one event, which may be none."""
        if isinstance(event, Done):
            if not self._started:
                yield self._first()
            yield self._chunk({}, _finish_reason(event.result))
            if self.include_usage:
                yield {**self._chunk({}), "choices": [], "usage": usage(event.result)}
        elif (delta := _delta(event)) is not None:
            if not self._started:
                yield self._first()
            yield self._chunk(delta)

    def _first(self) -> dict[str, Any]:
        """Return the chunk that clients expect before any text."""
        self._started = True
        return self._chunk({"role": "assistant", "content": ""})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {
            "id": self.answer_id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self.model,
            "choices": [choice],
            **({"usage": None} if self.include_usage else {}),
        }


def _delta(event: ChatEvent) -> dict[str, Any] | None:
    """Return the delta of one event, None for events that the protocol does not have."""
    if isinstance(event, ContentDelta):
        return {"content": event.text}
    if isinstance(event, ReasoningDelta):
        return {"reasoning_content": event.text, "content": ""}
    if isinstance(event, ToolCallDelta):
        function: dict[str, Any] = {"arguments": event.arguments}
        call: dict[str, Any] = {"index": event.index, "function": function}
        if event.name is not None:
            function["name"] = event.name
            call |= {"id": event.id, "type": "function"}
        return {"tool_calls": [call]}
    return None


def _finish_reason(result: Result) -> str:
    return _FINISH_REASONS.get(result.finish_reason, "stop")  # a cancelled answer has no word
