"""The body of a Chat Completions request, checked and turned into a request to an engine.

Null equals absent in every field. It must not know the engine's models or answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.foreign import quoted

UNLIMITED: Final = 2**31 - 1
"""`max_tokens` of a request without one: the answer may fill the context, as hosted models do. A
small default cuts tool calls in the middle, and agents retry them for ever."""

_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)

_REFUSED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "n": (lambda n: n != 1, "one answer per request is supported; omit n"),
    "best_of": (lambda n: n != 1, "one answer per request is supported; omit best_of"),
    "logprobs": (bool, "log-probabilities are not supported; omit logprobs"),
    "top_logprobs": (bool, "log-probabilities are not supported; omit top_logprobs"),
    "audio": (bool, "audio is not supported; omit audio"),
    "functions": (bool, "functions is an old field; use tools"),
    "function_call": (bool, "function_call is an old field; use tool_choice"),
    "store": (bool, "answers are not stored; omit store"),
}
"""Fields that ask for something that is not done, with the values that ask for it."""


@dataclass(frozen=True)
class ChatRequest:
    """One Chat Completions request.

    Args:
        messages: the conversation, as the client sent it.
        tools: tools offered to the model; None without any.
        tool_choice: "auto" or "none".
        config: options of the request.
        stream: whether the answer is streamed.
        include_usage: whether a stream ends with a chunk of token counts.
    """

    messages: Sequence[Any]
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any]
    config: GenerationConfig
    stream: bool
    include_usage: bool


def chat_request(body: Mapping[str, Any], defaults: SamplingConfig) -> ChatRequest:
    """Return the request in `body`; unknown fields are ignored, as OpenAI's servers do.

    Args:
        body: the fields of the request.
        defaults: sampling of a request that states none.

    Raises:
        BadRequest: a field has a wrong value, or asks for something that is not supported.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name, (asks, text) in _REFUSED.items():
        if name in given and asks(given[name]):
            raise BadRequest(f"{name} is {quoted(given[name])}; {text}")
    messages = given.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadRequest("messages is missing or empty; it needs a list of messages")
    stream_options = given.get("stream_options", {})
    if stream_options and not given.get("stream"):
        raise BadRequest("stream_options is given without stream; set stream to true")
    _check_response_format(given.get("response_format"))
    return ChatRequest(
        messages=messages,
        tools=given.get("tools") or None,
        tool_choice=given.get("tool_choice", "auto"),
        config=_config(given, defaults),
        stream=bool(given.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
    )


def _config(given: Mapping[str, Any], defaults: SamplingConfig) -> GenerationConfig:
    kwargs = dict(given.get("chat_template_kwargs", {}))
    effort = given.get("reasoning_effort")
    thinking = kwargs.pop("enable_thinking", None)
    if thinking is None and effort == "none":
        thinking, effort = False, None
    return GenerationConfig(
        max_tokens=given.get("max_completion_tokens", given.get("max_tokens", UNLIMITED)),
        stop=_stop(given.get("stop")),
        sampling=_sampling(given, defaults),
        thinking=thinking,
        reasoning_effort=effort,
        prediction=_prediction(given.get("prediction")),
        chat_template_kwargs=kwargs,
    )


def _sampling(given: Mapping[str, Any], defaults: SamplingConfig) -> SamplingConfig | None:
    """Return the request's sampling; None where it states nothing, for the model's own."""
    stated: dict[str, Any] = {name: given[name] for name in _SAMPLING if name in given}
    if bias := given.get("logit_bias"):
        try:
            stated["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise BadRequest(
                f"logit_bias is {quoted(bias)}; it needs token ids mapped to numbers"
            ) from error
    return replace(defaults, **stated) if stated else None


def _stop(stop: Any) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _prediction(prediction: Any) -> str | None:
    """Return the text of OpenAI's predicted output, whose parts are joined."""
    if prediction is None:
        return None
    content = prediction.get("content") if isinstance(prediction, Mapping) else None
    if isinstance(content, str):
        return content or None
    try:
        return "".join(part["text"] for part in content or ()) or None
    except (KeyError, TypeError) as error:
        raise BadRequest(
            f"prediction is {quoted(prediction)}; it needs a content of text"
        ) from error


def _check_response_format(response_format: Any) -> None:
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    if kind not in (None, "text"):
        raise BadRequest(
            f"response_format is {quoted(kind)}; only text is supported, and the output of an "
            "unconstrained answer would not be what was asked for"
        )
