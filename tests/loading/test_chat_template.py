"""Chat templates: rendered as transformers renders them, and asked what they understand."""

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

from dflash_mlx.engine.messages import join_consecutive, normalise_messages
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.chat_template import ChatTemplate, ToolCallForm

TEMPLATES = {
    file.stem: file.read_text() for file in Path(__file__).parent.glob("templates/*.jinja")
}
"""Templates with the structure of published ones, written for these tests."""

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather <now> & later",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Größe"},
                    "days": {"type": ["integer", "null"], "enum": [1, 2]},
                    "where": {"type": "array", "items": {"type": "object", "properties": {}}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]

SYSTEM = {"role": "system", "content": " Be brief. "}
HI = {"role": "user", "content": "Hi <b>there</b>\n"}
HELLO = {"role": "assistant", "content": "Hello!"}
AGAIN = {"role": "user", "content": 'Noch etwas: 🙂 "quoted" {{ braces }}'}
THOUGHT = {"role": "assistant", "content": "Sure.", "reasoning_content": "\nLet me think.\n"}
INLINE = {"role": "assistant", "content": "<think>\nLet me think.\n</think>\n\nSure."}
CALL = {
    "id": "call_0001",
    "type": "function",
    "function": {
        "name": "weather",
        "arguments": {"city": "Paris <1>", "days": 2, "deep": {"a": []}},
    },
}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
THOUGHT_CALLS = {**CALLS, "content": "Looking.", "reasoning_content": "Need the weather."}
TWO_CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [CALL, {**CALL, "id": "call_0002"}],
}
RESULT = {"role": "tool", "content": '{"t": 20}', "tool_call_id": "call_0001", "name": "weather"}

CONVERSATIONS = {
    "one question": [HI],
    "system": [SYSTEM, HI],
    "two turns": [HI, HELLO, AGAIN],
    "system and turns": [SYSTEM, HI, HELLO, AGAIN, HELLO, HI],
    "reasoning": [HI, THOUGHT, AGAIN],
    "reasoning inline": [SYSTEM, HI, INLINE, AGAIN],
    "tool result": [HI, CALLS, RESULT],
    "reasoning before a call": [SYSTEM, HI, THOUGHT_CALLS, RESULT],
    "two calls": [HI, TWO_CALLS, RESULT, {**RESULT, "tool_call_id": "call_0002"}],
    "call answered": [HI, CALLS, RESULT, HELLO, AGAIN],
    "call after a call": [HI, CALLS, RESULT, {**THOUGHT_CALLS}, RESULT],
    "answer last": [HI, HELLO],
    "empty": [{"role": "user", "content": ""}],
    "two users": [HI, AGAIN],
    "late system": [HI, HELLO, SYSTEM, AGAIN],
    "unknown role": [{"role": "critic", "content": "x"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "long": [SYSTEM, *[HI, HELLO] * 60, AGAIN],
}


def theirs(source, messages, tools, variables):
    """The prompt that transformers renders; None if the template refuses the messages."""
    try:
        (text,), _ = render_jinja_template(
            conversations=[_normalize_chat_messages(messages)],
            tools=tools,
            chat_template=source,
            add_generation_prompt=True,
            **TOKENS,
            **variables,
        )
    except Exception:  # noqa: BLE001  templates raise any type
        return None
    return text


def ours(source, messages, tools, variables):
    try:
        return ChatTemplate(source, TOKENS).render(messages, tools, **variables)
    except BadRequest:
        return None


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_prompts_equal_transformers(name):
    """A prompt that differs in one character is another prompt than the model was trained with."""
    rendered = 0
    for label, messages in CONVERSATIONS.items():
        for tools in (None, TOOLS):
            for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                expected = theirs(TEMPLATES[name], messages, tools, variables)
                assert ours(TEMPLATES[name], messages, tools, variables) == expected, label
                rendered += expected is not None
    assert rendered >= 20


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_continued_answers_equal_transformers(name):
    """An answer that is continued must not be closed by the template."""
    messages = [HI, {"role": "assistant", "content": "Once upon a"}]
    (expected,), _ = render_jinja_template(
        conversations=[messages],
        chat_template=TEMPLATES[name],
        continue_final_message=True,
        add_generation_prompt=False,
        **TOKENS,
    )
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    assert template.render(messages, continue_final=True) == expected
    assert expected.endswith("Once upon a")


@pytest.mark.parametrize(
    ("name", "switch", "effort"),
    [
        ("chatml", None, False),
        ("qwen3", "enable_thinking", False),
        ("qwen3_coder", None, False),
        ("qwen35", "enable_thinking", False),
        ("glm", "enable_thinking", False),
        ("gemma4", "enable_thinking", False),
        ("smollm3", "enable_thinking", False),
        ("deepseek_v31", "thinking", False),
        ("gpt_oss", None, True),
        ("minimax", None, False),
    ],
)
def test_the_thinking_switch_is_found_by_rendering(name, switch, effort):
    """A vocabulary with <think> was taken for a switch that the template does not have."""
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    assert template.thinking_switch == switch
    assert template.has_reasoning_effort is effort


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("qwen3", ToolCallForm()),
        ("qwen35", ToolCallForm()),
        ("glm", ToolCallForm()),
        ("gpt_oss", ToolCallForm()),
        ("deepseek_v3", ToolCallForm(objects=False, null_content=True)),
        ("chatml", ToolCallForm(rendered=False)),
    ],
)
def test_the_form_of_tool_calls_is_found_by_rendering(name, form):
    """Seven of eleven published templates refuse arguments as text, and one refuses objects."""
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    assert template.tool_call_form == form
    assert template.offers_tools is (name not in ("chatml", "deepseek_v3"))


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_calls_from_clients_are_rendered_whatever_their_form(name):
    """OpenAI clients send arguments as text and content as null."""
    template = ChatTemplate(TEMPLATES[name], TOKENS)
    if not template.tool_call_form.rendered:
        return
    function = {"name": "weather", "arguments": json.dumps({"city": "Paris"})}
    call = {**CALL, "function": function}
    messages = [HI, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT]
    text = template.render(normalise_messages(messages, template.tool_call_form))
    assert "Paris" in text
    assert "weather" in text or "call_0001" in text


def test_messages_of_one_role_are_joined_for_templates_that_demand_alternation():
    """Gemma's template refuses two questions in a row, which agents send."""
    template = ChatTemplate(TEMPLATES["gemma3"], TOKENS)
    with pytest.raises(BadRequest, match="roles must alternate"):
        template.render([HI, AGAIN])
    assert "there</b>\n\n\nNoch" in template.render(join_consecutive([HI, AGAIN]))


def test_named_templates_are_chosen_by_the_tools():
    """Command-R has one template for chat and one for tools."""
    sources = {"default": "plain {{ messages[0].content }}", "tool_use": "tools {{ tools|length }}"}
    template = ChatTemplate(sources, TOKENS)
    assert template.render([HI]).startswith("plain Hi")
    assert template.render([HI], TOOLS) == "tools 2"


def test_objects_other_than_json_are_refused_by_name():
    """The sandbox cannot judge methods of foreign objects."""
    template = ChatTemplate(TEMPLATES["chatml"], TOKENS)
    with pytest.raises(BadRequest, match="a PosixPath"):
        template.render([{"role": "user", "content": "x", "image": Path("/x")}])


def test_variables_of_a_template_are_known():
    """A misspelled variable was ignored."""
    assert "enable_thinking" in ChatTemplate(TEMPLATES["qwen3"], TOKENS).variables
    assert "date_string" in ChatTemplate(TEMPLATES["llama31"], TOKENS).variables
    assert "enable_thinking" not in ChatTemplate(TEMPLATES["chatml"], TOKENS).variables
