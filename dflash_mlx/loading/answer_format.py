"""How a model marks thoughts and tool calls in its answers, found from its vocabulary and template.

It must not know how answers are split or parsed; `engine` does.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from mlx_lm.tokenizer_utils import TokenizerWrapper

State = Literal["normal", "reasoning", "tool", "header"]
"""Part of an answer: text for the user, thought, tool call or structure, in mlx-lm's words."""

ToolFormat = Literal["mlx_lm", "llama3_json", "harmony", "deepseek"]
"""Who parses a tool call: mlx-lm's parser of the tokenizer, or a parser of this package."""

_HARMONY = frozenset(
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>")
)
"""Structure of gpt-oss answers: openai/harmony, docs/format.md."""

_DEEPSEEK = frozenset(
    f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
"""Structure of tool calls of DeepSeek V3, R1 and V3.1, from their tokenizer.json."""

_KIMI = frozenset(
    f"<|tool_{name}|>"
    for name in (
        "calls_section_begin",
        "calls_section_end",
        "call_begin",
        "call_argument_begin",
        "call_end",
    )
)
"""Structure of tool calls of Kimi K2, from its tokenizer_config.json."""

_PYTHON_TAG = "<|python_tag|>"
"""Starts a tool call of Llama 3.1 and later."""

_STRUCTURE = frozenset(
    (
        _PYTHON_TAG,
        *_DEEPSEEK,
        *_KIMI,
        *("<|tool_call>", "<tool_call|>", '<|"|>'),  # Gemma 4
        *("<start_function_call>", "<end_function_call>", "<escape>"),  # FunctionGemma
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),  # Mistral
        *("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
        *("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),  # Kimi K3
        *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *("<minimax:tool_call>", "</minimax:tool_call>"),
    )
)
"""Special tokens that are part of an answer's text: without them a call cannot be parsed."""

_MORE_THINKING = (("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""Thinking marks that mlx-lm does not know: Magistral's and Seed-OSS's."""


_TEMPLATE_MARKS = (
    ("qwen3_coder", ("<tool_call>\n<function=",)),
    ("json_tools", ("<tool_call>", "tool_call.name")),
)
"""Tool formats of templates, for tokenizers that mlx-lm did not load: those of GGUF files."""


@dataclass(frozen=True)
class AnswerFormat:
    """The marks of a model's answers.

    Args:
        thinking: marks that open and close a thought; None if the vocabulary has none.
        tool_call: marks that open and close tool calls; an empty closing mark means the end of
            the answer. None if calls have no marks, or are not supported.
        tool_format: who parses the calls; None if calls are not supported.
        tool_module: mlx-lm's name of the format, if `tool_format` is "mlx_lm".
        harmony: whether the answer is a sequence of channels, as gpt-oss writes them.
        bare_json_calls: whether an answer that starts with `{` may be a tool call.
        transitions: further marks by state, with the state after each.
        initial: the state in which an answer starts.
        text_tokens: special tokens that belong to the text of an answer.
        end_tokens: special tokens that end an answer although no configuration says so.
    """

    thinking: tuple[str, str] | None = None
    tool_call: tuple[str, str] | None = None
    tool_format: ToolFormat | None = None
    tool_module: str | None = None
    harmony: bool = False
    bare_json_calls: bool = False
    transitions: Mapping[State, tuple[tuple[str, State], ...]] = field(default_factory=dict)
    initial: State = "normal"
    text_tokens: frozenset[str] = frozenset()
    end_tokens: frozenset[str] = frozenset()


def answer_format(wrapper: TokenizerWrapper, template: str) -> AnswerFormat:
    """Return the answer format of a tokenizer and its chat template."""
    vocabulary = wrapper.get_vocab()
    if _HARMONY - {"<|constrain|>", "<|call|>"} <= vocabulary.keys():
        return AnswerFormat(
            harmony=True,
            tool_format="harmony",
            text_tokens=_HARMONY & vocabulary.keys(),
            end_tokens=frozenset({"<|call|>"}) & vocabulary.keys(),
        )
    thinking = _thinking(wrapper, vocabulary.keys())
    tool_call: tuple[str, str] | None = None
    tool_format: ToolFormat | None = None
    module = wrapper.init_kwargs.get("tool_parser_type") or _tool_module(template)
    if module is not None:
        parser = importlib.import_module(f"mlx_lm.tool_parsers.{module}")
        tool_call, tool_format = (parser.tool_call_start, parser.tool_call_end), "mlx_lm"
    elif vocabulary.keys() >= _DEEPSEEK:
        tool_call, tool_format = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "deepseek"
    elif _PYTHON_TAG in vocabulary:
        tool_call, tool_format = (_PYTHON_TAG, ""), "llama3_json"
    marks = {mark for pair in (thinking, tool_call) if pair for mark in pair}
    structural = {*_STRUCTURE, *marks, *_parts(wrapper)}
    return AnswerFormat(
        thinking=thinking,
        tool_call=tool_call,
        tool_format=tool_format,
        tool_module=module,
        # Llama 3.1's template asks for bare JSON; the tag is for its built-in tools
        bare_json_calls=tool_format == "llama3_json" and '"parameters"' in template,
        transitions=_transitions(wrapper),
        initial=cast(State, wrapper.response_initial_state or "normal"),
        text_tokens=frozenset(structural & vocabulary.keys()),
    )


def _tool_module(template: str) -> str | None:
    """Return mlx-lm's name of the tool format of a template, for tokenizers it did not load."""
    text = template.replace("\\n", "\n")
    return next((name for name, marks in _TEMPLATE_MARKS if all(m in text for m in marks)), None)


def _thinking(wrapper: TokenizerWrapper, vocabulary: Iterable[str]) -> tuple[str, str] | None:
    if wrapper.has_thinking:
        return wrapper.think_start, wrapper.think_end
    known = set(vocabulary)
    return next((pair for pair in _MORE_THINKING if known.issuperset(pair)), None)


def _parts(wrapper: TokenizerWrapper) -> set[str]:
    """Return the tokens that mlx-lm's marks of several tokens are made of."""
    ids = [
        *(wrapper.think_start_tokens or ()),
        *(wrapper.think_end_tokens or ()),
        *(wrapper.tool_call_start_tokens or ()),
        *(wrapper.tool_call_end_tokens or ()),
    ]
    return {str(wrapper.convert_ids_to_tokens(index)) for index in ids}


def _transitions(wrapper: TokenizerWrapper) -> dict[State, tuple[tuple[str, State], ...]]:
    """Return the marks that mlx-lm knows beyond thoughts and calls."""
    stated = cast(dict[State, list[tuple[str, State]]], wrapper.response_transitions)
    found = {state: list(edges) for state, edges in stated.items()}
    for mark in wrapper.structural_markers:
        found.setdefault("normal", []).append((mark, "normal"))
    return {state: tuple(edges) for state, edges in found.items()}
