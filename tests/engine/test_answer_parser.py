"""Answers are split into content, reasoning, calls and marks, for every way of cutting them."""

import pytest

from dflash_mlx.engine.answer.parser import answer_parser
from dflash_mlx.loading.answer_format import AnswerFormat

THINKING = AnswerFormat(thinking=("<think>", "</think>"))
TOOLS = AnswerFormat(
    thinking=("<think>", "</think>"),
    tool_call=("<tool_call>", "</tool_call>"),
    tool_format="mlx_lm",
)
OPEN_ENDED = AnswerFormat(
    tool_call=("<|python_tag|>", ""), tool_format="llama3_json", bare_json_calls=True
)
HARMONY = AnswerFormat(harmony=True, tool_format="harmony")
START = "<|start|>user<|message|>hi<|end|><|start|>assistant"


def split(form, text, size, prompt_end="", tools=False):
    """Return the text of each kind, calls apart, and the whole text."""
    parser = answer_parser(form, prompt_end, tools)
    segments = []
    for start in range(0, len(text), size):
        segments += parser.feed(text[start : start + size])
    segments += parser.finish()
    assert "".join(segment.text for segment in segments) == text
    assert all(segment.text for segment in segments)
    parts = {"content": "", "reasoning": ""}
    for segment in segments:
        if segment.kind in parts:
            parts[segment.kind] += segment.text
    n_calls = max((segment.call for segment in segments), default=-1) + 1
    calls = ["".join(s.text for s in segments if s.call == call) for call in range(n_calls)]
    return parts["content"], parts["reasoning"], calls


SIZES = [1, 2, 3, 7, 1000]


@pytest.mark.parametrize("size", SIZES)
def test_marks_across_pieces_are_found(size):
    """A mark across two rounds put the thought into the answer."""
    text = "<think>\nhm <b> so\n</think>\n\nThe <i>answer</i>  "
    assert split(THINKING, text, size) == ("The <i>answer</i>  ", "hm <b> so", [])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prompt_end", ["assistant\n<think>", "assistant\n<think>\n"])
def test_a_prompt_that_opens_the_thought_starts_inside(size, prompt_end):
    """Templates that open the thought in the prompt leave no opening mark in the answer."""
    assert split(THINKING, "hm</think>yes", size, prompt_end)[:2] == ("yes", "hm")


def test_a_mark_in_the_question_opens_no_thought():
    """A question about <think> turned the whole answer into a thought."""
    assert split(THINKING, "yes", 1, "what is <think>?<|im_end|>assistant\n")[:2] == ("yes", "")


@pytest.mark.parametrize("size", SIZES)
def test_a_thought_cut_short_stays_reasoning(size):
    """A thought cut by the token limit was reported as the answer."""
    assert split(THINKING, "<think>and then", size) == ("", "and then", [])


def test_a_closing_mark_alone_is_no_content():
    """With thinking off, models write the closing mark all the same."""
    assert split(THINKING, "</think>\nyes", 3)[:2] == ("yes", "")


def test_text_of_models_without_marks_is_content():
    """A model without a thinking mode may write "<think>" as text."""
    assert split(AnswerFormat(), " a <think> b\n", 2) == (" a <think> b\n", "", [])


@pytest.mark.parametrize("size", SIZES)
def test_tool_calls_are_separated(size):
    """A call in the content is printed to the user and never made."""
    text = "<think>\nhm\n</think>\n\nLooking.\n<tool_call>\n{1}\n</tool_call>\n"
    text += "<tool_call>2</tool_call>"
    content, reasoning, calls = split(TOOLS, text, size, tools=True)
    assert (content, reasoning, calls) == ("Looking.", "hm", ["\n{1}\n", "2"])
    assert split(TOOLS, text, size)[0].endswith("2</tool_call>"), "without tools, calls are text"


@pytest.mark.parametrize("size", SIZES)
def test_a_call_inside_a_thought_is_a_call(size):
    """Qwen3.5 calls tools before it closes its thought."""
    text = "hm\n<tool_call>1</tool_call>"
    assert split(TOOLS, text, size, "<think>\n", tools=True) == ("", "hm", ["1"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", ['{"name": 1}', '\n <|python_tag|>{"name": 1}'])
def test_calls_without_an_end_mark_last_to_the_end(size, text):
    """Llama 3.1 writes bare JSON, or JSON after a tag."""
    assert split(OPEN_ENDED, text, size, tools=True)[2] == ['{"name": 1}']
    assert split(OPEN_ENDED, "a {b}", size, tools=True) == ("a {b}", "", [])


@pytest.mark.parametrize("size", SIZES)
def test_channels_are_separated(size):
    """The channels of gpt-oss ran together and went into the history as one text."""
    text = (
        "<|channel|>analysis<|message|>Be polite.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>First. <|end|><|start|>assistant<|channel|>final<|message|>Hello!"
    )
    assert split(HARMONY, text, size, START) == ("First. Hello!", "Be polite.", [])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.now <|constrain|>json",
        " to=functions.now<|channel|>commentary json",
    ],
)
def test_a_recipient_makes_a_call(size, header):
    """The recipient stands in the role or in the channel, and names the function."""
    text = f"<|channel|>analysis<|message|>a<|end|><|start|>assistant{header}<|message|>{{}}"
    content, reasoning, (call,) = split(HARMONY, text, size, START, tools=True)
    assert (content, reasoning) == ("", "a")
    assert "to=functions.now" in call
    assert call.endswith("<|message|>{}")


def test_a_continued_channel_goes_on():
    """A prompt that ends inside the final channel has no header to wait for."""
    prompt_end = "<|start|>assistant<|channel|>final<|message|>Once upon"
    assert split(HARMONY, " a time", 2, prompt_end)[0] == " a time"
    assert split(HARMONY, "text", 2, "no structure")[0] == "text"
