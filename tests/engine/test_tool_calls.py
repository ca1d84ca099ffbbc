"""Tool calls of every format: parsed, streamed in fragments of equal value, or left as text."""

import importlib
import json
import random

import pytest

from dflash_mlx.engine.answer.collector import AnswerCollector
from dflash_mlx.engine.answer.parser import answer_parser
from dflash_mlx.engine.events import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallDropped
from dflash_mlx.loading.answer_format import AnswerFormat

THINK = ("<think>", "</think>")


def mlx_lm_format(module):
    """Return the format of one of mlx-lm's parsers."""
    loaded = importlib.import_module(f"mlx_lm.tool_parsers.{module}")
    marks = (loaded.tool_call_start, loaded.tool_call_end)
    return AnswerFormat(thinking=THINK, tool_call=marks, tool_format="mlx_lm", tool_module=module)


def json_tools(calls):
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    )


def arguments_first(calls):
    return "\n".join(
        f'<tool_call>{{"arguments":{json.dumps(arguments)} , "x": [1, "}}"], '
        f'"name":"{name}"}}</tool_call>'
        for name, arguments in calls
    )


def element(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen3_coder(calls):
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={k}>\n{element(v)}\n</parameter>\n" for k, v in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def glm47(calls):
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{element(v)}</arg_value>\n"
            for k, v in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def minimax_m2(calls):
    return (
        "<minimax:tool_call>\n"
        + "\n".join(
            f'<invoke name="{name}">\n'
            + "".join(
                f'<parameter name="{k}">{element(v)}</parameter>\n' for k, v in arguments.items()
            )
            + "</invoke>"
            for name, arguments in calls
        )
        + "\n</minimax:tool_call>"
    )


def kimi_k2(calls):
    return (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>"
            f"{json.dumps(arguments)}<|tool_call_end|>"
            for n, (name, arguments) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    )


def mistral(calls):
    return "[TOOL_CALLS]" + "".join(f"{name}[ARGS]{json.dumps(a)}" for name, a in calls)


def pythonic(calls):
    inner = ", ".join(
        f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
        for name, arguments in calls
    )
    return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"


def gemma4_value(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma4_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(gemma4_value, value))}]"
    return json.dumps(value)


def gemma4(calls):
    return "".join(f"<|tool_call>call:{n}{gemma4_value(a)}<tool_call|>" for n, a in calls)


def llama3(calls):
    return "; ".join(json.dumps({"name": n, "parameters": a}) for n, a in calls)


def llama3_tagged(calls):
    return "<|python_tag|>" + llama3(calls)


def harmony(calls):
    return "<|channel|>analysis<|message|>hm<|end|>" + "<|call|>".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
        f"<|message|>{json.dumps(arguments)}"
        for name, arguments in calls
    )


def deepseek_v3(calls):
    return (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"
            "<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def deepseek_v31(calls):
    return (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


DEEPSEEK = AnswerFormat(
    tool_call=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), tool_format="deepseek"
)
LLAMA3 = AnswerFormat(
    tool_call=("<|python_tag|>", ""), tool_format="llama3_json", bare_json_calls=True
)
HARMONY = AnswerFormat(harmony=True, tool_format="harmony")

FORMATS = {
    "json_tools": (mlx_lm_format("json_tools"), json_tools),
    "arguments first": (mlx_lm_format("json_tools"), arguments_first),
    "qwen3_coder": (mlx_lm_format("qwen3_coder"), qwen3_coder),
    "glm47": (mlx_lm_format("glm47"), glm47),
    "minimax_m2": (mlx_lm_format("minimax_m2"), minimax_m2),
    "kimi_k2": (mlx_lm_format("kimi_k2"), kimi_k2),
    "mistral": (mlx_lm_format("mistral"), mistral),
    "pythonic": (mlx_lm_format("pythonic"), pythonic),
    "gemma4": (mlx_lm_format("gemma4"), gemma4),
    "llama3": (LLAMA3, llama3),
    "llama3 tagged": (LLAMA3, llama3_tagged),
    "harmony": (HARMONY, harmony),
    "deepseek v3": (DEEPSEEK, deepseek_v3),
    "deepseek v3.1": (DEEPSEEK, deepseek_v31),
}
STREAMED = FORMATS.keys() - {"arguments first", "pythonic", "gemma4"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "text": {"type": "string"},
                    "days": {"type": "integer"},
                    "deep": {"type": "object"},
                    "on": {"type": "boolean"},
                },
            },
        },
    }
    for name in ("weather", "write_file")
]

CASES = [
    [("weather", {"city": "Paris"})],
    [("weather", {"city": "Paris", "days": 3}), ("write_file", {"text": "a"})],
    [
        (
            "write_file",
            {"text": 'def f(x):\n    return {"a": x}  # "quoted" \\n <b>\n\nend', "on": True},
        )
    ],
    [("weather", {"city": "Zürich 日本 🙂", "deep": {"a": [1, {"b": "}"}], "c": None}})],
    [("weather", {})],
]


def run(form, text, sizes):
    """Feed `text` in pieces of the given sizes; return the events and what was collected."""
    start = "<|start|>assistant" if form.harmony else ""
    parser = answer_parser(form, start, tools=True)
    collected = AnswerCollector(form, TOOLS)
    events, at = [], 0
    while at < len(text):
        size = next(sizes)
        events += collected.add(parser.feed(text[at : at + size]))
        at += size
    events += collected.add(parser.finish())
    events += collected.finish()
    return events, collected


def fragments(events):
    """Return name and joined arguments of each call, dropped ones left out."""
    calls = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            call = calls.setdefault(event.index, {"name": event.name, "id": event.id, "text": ""})
            assert event.id == call["id"]
            call["text"] += event.arguments
        elif isinstance(event, ToolCallDropped):
            del calls[event.index]
    return [(call["name"], call["text"], call["id"]) for call in calls.values()]


def fixed(size):
    while True:
        yield size


def drawn(seed):
    rng = random.Random(seed)
    while True:
        yield rng.choice([1, 1, 2, 3, 5, 8, 40])


@pytest.mark.parametrize("name", FORMATS)
def test_fragments_equal_the_parsed_call_for_every_chunking(name):
    """Arguments that were streamed had another value than the call in the result."""
    form, write = FORMATS[name]
    for calls in CASES:
        text = write(calls)
        chunkings = [fixed(1), fixed(2), fixed(7), fixed(10_000), *map(drawn, range(5))]
        for sizes in chunkings:
            events, collected = run(form, text, sizes)
            assert [(c.name, dict(c.arguments)) for c in collected.tool_calls] == calls, text
            sent = fragments(events)
            assert [(n, json.loads(t)) for n, t, _ in sent] == calls
            assert [i for _, _, i in sent] == [call.id for call in collected.tool_calls]
            assert collected.content.strip("; \n") == ""
            assert not any(isinstance(event, ToolCallDropped) for event in events)


@pytest.mark.parametrize("name", sorted(STREAMED))
def test_arguments_arrive_while_they_are_written(name):
    """Clients give up on a call of 10,000 tokens that arrives in one piece."""
    form, write = FORMATS[name]
    text = write([("write_file", {"city": "x", "text": "word " * 200})])
    events, _ = run(form, text[: len(text) * 2 // 3], fixed(3))
    first = next(event for event in events if isinstance(event, ToolCallDelta))
    assert first.name == "write_file"
    assert any(isinstance(event, ToolCallDelta) and event.arguments for event in events)


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2"])
def test_a_long_text_argument_arrives_while_it_is_written(name):
    """A file of 10,000 tokens is one argument: clients saw nothing until its end."""
    form, write = FORMATS[name]
    text = write([("write_file", {"text": "word " * 200 + "end"})])
    events, _ = run(form, text[: len(text) // 2], fixed(3))
    sent = "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))
    assert sent.startswith('{"text": "word word')
    assert len(sent) > 400


TEXTS = [
    *(
        "",
        "null",
        "Null",
        "nullable",
        "n",
        " null ",
        "\n",
        "\n\nx\n\n",
        "  x  ",
        "a</b>c",
        "</para",
    ),
    *(
        "</para",
        "x</parameter",
        "<parameter=text>",
        '"quoted"\\',
        "true",
        "[1]",
        "é\u2028🙂",
        "a\r\nb",
    ),
]


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "minimax_m2"])
@pytest.mark.parametrize("value", TEXTS)
def test_fragments_of_odd_texts_equal_the_parser_s_value(name, value):
    """Parsers strip white space and turn "null" into null, after the text was passed on."""
    form, write = FORMATS[name]
    text = write([("write_file", {"text": value, "city": "x"})])
    for sizes in (fixed(1), fixed(3), fixed(10_000), drawn(1)):
        events, collected = run(form, text, sizes)
        sent = [(name, json.loads(joined)) for name, joined, _ in fragments(events)]
        assert sent == [(call.name, dict(call.arguments)) for call in collected.tool_calls]
        assert not any(isinstance(event, ToolCallDropped) for event in events)


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_cut_short_becomes_text_without_marks(name):
    """A call that ended at the token limit raised an exception and lost the answer."""
    form, write = FORMATS[name]
    text = write([("write_file", {"text": "first second third"})])
    for end in range(len(text)):
        events, collected = run(form, text[:end], fixed(3))
        for event in events:
            if isinstance(event, ContentDelta):
                for mark in (*(form.tool_call or ()), "<|message|>", "<|channel|>"):
                    assert not mark or mark not in event.text
        assert len(fragments(events)) == len(collected.tool_calls)
    assert len(collected.tool_calls) <= 1


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        (mlx_lm_format("json_tools"), "<tool_call>{'a'</tool_call>b", "{'a'b"),
        (mlx_lm_format("json_tools"), '<tool_call>{"name": 5, "arguments": {}}</tool_call>', None),
        (
            mlx_lm_format("json_tools"),
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            None,
        ),
        (mlx_lm_format("qwen3_coder"), "<tool_call>nothing</tool_call>", "nothing"),
        (mlx_lm_format("kimi_k2"), "<|tool_calls_section_begin|>x<|tool_calls_section_end|>", "x"),
        (LLAMA3, '{"name": "unknown", "parameters": {}}', None),
        (LLAMA3, '{"city": "Paris"}', None),
        (LLAMA3, "<|python_tag|>print(1)", "print(1)"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>", "x"),
        (HARMONY, "<|channel|>commentary to=functions.f<|message|>{not json", "{not json"),
    ],
)
def test_text_that_does_not_parse_is_content(form, text, content):
    """Answers about JSON were swallowed as calls."""
    for size in (1, 4, 1000):
        events, collected = run(form, text, fixed(size))
        assert collected.tool_calls == []
        assert fragments(events) == []
        if content is None:
            content = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
        assert collected.content == content


def test_content_and_reasoning_around_calls_stay_apart():
    """Content, reasoning and two calls of one answer arrive in order."""
    form = mlx_lm_format("json_tools")
    calls = [("weather", {"city": "Paris"}), ("unknown", {})]
    text = f"<think>\nhm\n</think>\n\nLooking.\n\n{json_tools(calls)}"
    for size in (1, 3, 1000):
        events, collected = run(form, text, fixed(size))
        assert (collected.content, collected.reasoning) == ("Looking.", "hm")
        assert [call.name for call in collected.tool_calls] == ["weather", "unknown"]
        kinds = [type(event) for event in events]
        assert kinds == sorted(kinds, key=[ReasoningDelta, ContentDelta, ToolCallDelta].index)


def test_ids_of_the_model_are_kept():
    """Kimi K2 numbers its calls, and expects the numbers in the results."""
    form, write = FORMATS["kimi_k2"]
    _, collected = run(form, write(CASES[1]), fixed(2))
    assert [call.id for call in collected.tool_calls] == [
        "functions.weather:0",
        "functions.write_file:1",
    ]


def test_line_breaks_in_strings_of_a_call_survive():
    """Models write line breaks inside JSON strings, which strict parsers refuse."""
    text = '{"name": "write_file", "parameters": {"text": "a\nb\tc"}}'
    for size in (1, 1000):
        events, collected = run(LLAMA3, text, fixed(size))
        assert collected.tool_calls[0].arguments == {"text": "a\nb\tc"}
        assert json.loads(fragments(events)[0][1]) == {"text": "a\nb\tc"}
