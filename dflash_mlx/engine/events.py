"""Typed events of an answer: text, reasoning and tool calls as they are written.

It must not know how a model marks them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ContentDelta:
    """New text of the answer.

    Args:
        text: the text that follows the earlier deltas.

    Examples:
        >>> from dflash_mlx import ContentDelta
        >>> ContentDelta("Hello").text
        'Hello'
    """

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """New text of a thought.

    Args:
        text: the text that follows the earlier deltas.

    Examples:
        >>> from dflash_mlx import ReasoningDelta
        >>> ReasoningDelta("First,").text
        'First,'
    """

    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A part of a tool call.

    The `arguments` of all deltas of one `index`, joined, are a JSON object.

    Args:
        index: number of the call in the answer, from 0.
        id: id of the call, the same in all of its deltas.
        name: name of the tool; in the first delta of a call only.
        arguments: JSON text that follows the earlier deltas.

    Examples:
        >>> from dflash_mlx import ToolCallDelta
        >>> ToolCallDelta(0, "call_1", "now", "{}").name
        'now'
    """

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass(frozen=True)
class ToolCallDropped:
    """A call of which deltas were sent turned out not to be one; its text follows as content.

    Args:
        index: number of the call in its deltas.

    Examples:
        >>> from dflash_mlx import ToolCallDropped
        >>> ToolCallDropped(0).index
        0
    """

    index: int


@dataclass(frozen=True)
class ToolCall:
    """A complete tool call.

    Args:
        id: id of the call, for the message with its result.
        name: name of the tool, as the model wrote it.
        arguments: arguments by name.

    Examples:
        >>> from dflash_mlx import ToolCall
        >>> ToolCall("call_1", "weather", {"city": "Paris"}).as_message()["type"]
        'function'
    """

    id: str
    name: str
    arguments: Mapping[str, Any]

    def as_message(self) -> dict[str, Any]:
        """Return the call as OpenAI's API has it in a message, arguments as JSON text."""
        arguments = json.dumps(dict(self.arguments), ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


AnswerEvent = ContentDelta | ReasoningDelta | ToolCallDelta | ToolCallDropped
"""What happens while an answer is written."""
