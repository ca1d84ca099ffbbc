"""Messages of clients: every dialect leads to the form that chat templates take."""

import json

import pytest

from dflash_mlx.engine.events import ToolCall
from dflash_mlx.engine.messages import (
    assistant_message,
    join_consecutive,
    normalise_messages,
    tool_schemas,
)
from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.chat_template import ToolCallForm

OBJECTS = ToolCallForm()
TEXT = ToolCallForm(objects=False, null_content=True)


def one(message, form=OBJECTS):
    (found,) = normalise_messages([message], form)
    return found


@pytest.mark.parametrize(
    ("asked", "role"), [("developer", "system"), ("function", "tool"), ("user", "user")]
)
def test_roles_of_newer_and_older_apis_are_known(asked, role):
    """OpenAI renamed system to developer, and function to tool."""
    assert one({"role": asked, "content": "x"})["role"] == role


@pytest.mark.parametrize("content", [None, [], "", [{"type": "text", "text": ""}]])
def test_empty_content_is_an_empty_text(content):
    """Templates concatenate content, and null stopped them."""
    assert one({"role": "user", "content": content})["content"] == ""
    assert one({"role": "user"})["content"] == ""


def test_text_parts_are_joined_as_they_are():
    """A list of parts failed with Python's "can only concatenate str"."""
    parts = [
        {"type": "text", "text": "a "},
        {"type": "input_text", "text": "b\n"},
        {"type": "output_text", "text": "c"},
        "d",
    ]
    assert one({"role": "user", "content": parts})["content"] == "a b\ncd"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "message 0, part 0 is 'image_url'",
        ),
        ([{"role": "user", "content": "x"}, {"role": "x"}], "message 1 has the role 'x'"),
        ([{"role": "user", "content": {"a": 1}}], "message 0 has content"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "part 0 holds 5"),
        (["text"], "message 0 is 'text'"),
        ([{"role": "assistant", "tool_calls": 5}], "tool_calls 5"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "message 0, tool call 0"),
        ([{"role": "assistant", "content": "", "reasoning": 5}], "reasoning 5"),
        ([{"role": "user", "content": [{"type": "x" * 10_000}]}], "more characters"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_message_and_part(messages, named):
    """A refusal that names no message cannot be corrected."""
    with pytest.raises(BadRequest, match=named):
        normalise_messages(messages, OBJECTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"thinking": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"text": "m"}]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}]},
    ],
)
def test_reasoning_of_every_client_is_one_field(fields):
    """A thought under another name was lost between two tool calls."""
    found = one({"role": "assistant", "content": "x", **fields})
    assert found == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def call(arguments, **fields):
    return {"function": {"name": "f", "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("not json", {"arguments": "not json"}),
        ("[1]", {"arguments": "[1]"}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_arguments_are_objects_for_templates_that_loop_over_them(arguments, rendered):
    """Clients send JSON text, and a model's broken JSON must not end the conversation."""
    found = one({"role": "assistant", "content": "", "tool_calls": [call(arguments, id="1")]})
    assert found["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": rendered}}
    ]


def test_arguments_are_text_for_templates_that_want_text():
    """DeepSeek V3's template concatenates arguments, and tests whether content is null."""
    found = one({"role": "assistant", "tool_calls": [call({"a": 1})]}, TEXT)
    assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert found["content"] is None
    said = one({"role": "assistant", "content": "x", "tool_calls": [call("{}")]}, TEXT)
    assert said["content"] == "x"


def test_the_old_form_of_a_call_is_known():
    """`function_call` was the only form in 2023, and histories still have it."""
    message = {"role": "assistant", "content": None, "function_call": {"name": "f"}}
    assert one(message)["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_a_tool_result_gets_the_name_of_its_call():
    """Some templates write the tool's name into the result, which clients leave out."""
    messages = [
        {"role": "assistant", "tool_calls": [call("{}", id="7")]},
        {"role": "tool", "tool_call_id": "7", "content": "1"},
        {"role": "tool", "tool_call_id": "8", "content": "2"},
    ]
    _, known, unknown = normalise_messages(messages, OBJECTS)
    assert known["name"] == "f"
    assert "name" not in unknown


def test_system_messages_at_the_start_become_one():
    """Many templates take one system message only."""
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]
    found = normalise_messages(messages, OBJECTS)
    assert [m["content"] for m in found] == ["a\n\nb", "c", "d"]


def test_consecutive_messages_are_joined_on_demand():
    """Messages with tool calls keep their place between the call and its result."""
    with_call = {"role": "assistant", "content": "", "tool_calls": [call("{}")]}
    user = {"role": "user", "content": "a"}
    messages = [user, user, with_call, with_call]
    joined = join_consecutive(messages)
    assert [message["role"] for message in joined] == ["user", "assistant", "assistant"]
    assert joined[0]["content"] == "a\n\na"


class Dumped:
    """A message object, as the `openai` package returns them."""

    def __init__(self, **fields):
        self._fields = fields

    def model_dump(self):
        return self._fields


def test_objects_of_client_libraries_are_messages():
    """The answer of a client library is appended to the conversation as it is."""
    message = Dumped(role="assistant", content=None, tool_calls=[Dumped(**call("{}"))], audio=None)
    found = one(message)
    assert found["tool_calls"][0]["function"]["name"] == "f"
    assert "audio" not in found


def test_an_answer_becomes_a_message_that_renders_again():
    """An answer that does not render back ends the reuse of its rows."""
    message = assistant_message("x", "hm", [ToolCall("1", "f", {"a": "ü"})])
    found = one(message)
    assert (found["content"], found["reasoning_content"]) == ("x", "hm")
    assert found["tool_calls"][0]["function"]["arguments"] == {"a": "ü"}
    assert assistant_message("x", "") == {"role": "assistant", "content": "x"}


def test_tools_of_both_apis_are_one_form_with_keys_as_given():
    """One changed space in a schema ends the reuse of the whole prompt."""
    schema = {"z": 1, "a": {"type": "object"}}
    flat = {"type": "function", "name": "f", "parameters": schema}
    nested = {"type": "function", "function": {"name": "f", "parameters": schema}}
    (first,), (second,) = tool_schemas([flat]), tool_schemas([nested])
    assert first == second == nested
    assert list(first["function"]["parameters"]) == ["z", "a"]
