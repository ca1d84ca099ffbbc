"""Tokenizers: special tokens that are text, begin tokens, foreign code and damaged files."""

import io
import json
import sys

import pytest
from tokenizers.processors import TemplateProcessing

from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel
from dflash_mlx.loading.tokenizer import Tokenizer
from tests.loading.byte_level import byte_level, raw_tokenizer, write_byte_level
from tests.loading.test_chat_template import TEMPLATES

DEEPSEEK = ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("special", "written", "text"),
    [
        (  # Gemma 4
            ("<eos>", "<turn>", "<|channel>", "<channel|>"),
            "<turn><|channel>thought\nIt is short.<channel|>Yes.<eos>",
            "<|channel>thought\nIt is short.<channel|>Yes.",
        ),
        (  # gpt-oss
            ("<|return|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>"),
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
        ),
        (  # Llama 3.1
            ("<|eot_id|>", "<|start_header_id|>", "<|python_tag|>"),
            '<|start_header_id|><|python_tag|>{"name": "f"}<|eot_id|>',
            '<|python_tag|>{"name": "f"}',
        ),
        (  # Kimi K2
            ("<|im_end|>", "<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
            "<|tool_calls_section_begin|>functions.w:0<|tool_call_argument_begin|>{}<|im_end|>",
            "<|tool_calls_section_begin|>functions.w:0<|tool_call_argument_begin|>{}",
        ),
        (  # DeepSeek V3
            ("<eos>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
            "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>w<eos>",
            "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>w",
        ),
        (("<eos>", "<turn>"), "<turn>Hi<eos>", "Hi"),
    ],
)
def test_special_tokens_that_mark_thoughts_and_calls_are_text(special, written, text):
    """Without its marks a thought was part of the answer, and a call could not be parsed."""
    tokenizer = byte_level(None, special)
    assert tokenizer.decode(tokenizer.encode(written)) == text


def test_a_call_ends_the_answer_of_a_model_with_channels():
    """gpt-oss ends a call with a token of its own."""
    special = ("<|return|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>")
    tokenizer = byte_level(None, special)
    assert tokenizer.special_ids(("<|call|>",)) <= tokenizer.eos_token_ids


def test_a_prompt_has_one_begin_token(tmp_path):
    """A raw prompt that starts with its begin token got a second one and another answer."""
    raw = raw_tokenizer(("<end>", "<begin>"))
    raw.post_processor = TemplateProcessing(
        single=["<begin>", "$A"], pair=None, special_tokens=[("<begin>", 257)]
    )
    raw.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<begin>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<end>"}))
    tokenizer = Tokenizer.read(tmp_path, ())
    assert (
        tokenizer.encode("<begin>Once")
        == tokenizer.encode("Once")
        == [257, *tokenizer.encode("Once")[1:]]
    )
    assert tokenizer.encode("Once").count(257) == 1


@pytest.mark.parametrize(
    ("template", "switch", "thinks"),
    [
        (TEMPLATES["chatml"], None, None),
        (TEMPLATES["chatml"].replace("assistant\\n", "assistant\\n<think>\\n"), None, True),
        (TEMPLATES["qwen3"], "enable_thinking", None),
        (TEMPLATES["deepseek_v31"], "thinking", None),
        (None, None, None),
    ],
)
def test_thinking_follows_the_template(template, switch, thinks):
    """Models with <think> in the vocabulary and no switch took --no-thinking without effect."""
    tokenizer = byte_level(template, ("<eos>",), ("<think>", "</think>"))
    assert tokenizer.thinking_switch == switch
    assert tokenizer.has_thinking is (switch is not None)
    if switch is None:
        assert tokenizer.thinks_without_switch is thinks
        return
    on, off = (tokenizer.tail(tokenizer.render(HI, way)) for way in (True, False))
    assert on != off


@pytest.mark.parametrize(
    ("template", "special", "tool_format", "module"),
    [
        ("qwen3", (), "mlx_lm", "json_tools"),
        ("qwen3_coder", (), "mlx_lm", "qwen3_coder"),
        ("qwen35", (), "mlx_lm", "qwen3_coder"),
        ("llama31", ("<|python_tag|>",), "llama3_json", None),
        ("deepseek_v31", tuple(f"<｜tool▁{n}｜>" for n in DEEPSEEK), "deepseek", None),
        ("gpt_oss", ("<|start|>", "<|end|>", "<|channel|>", "<|message|>"), "harmony", None),
        ("chatml", (), None, None),
    ],
)
def test_the_tool_format_follows_template_and_vocabulary(template, special, tool_format, module):
    """Tokenizers of GGUF files had no tool calls, and three formats have no parser in mlx-lm."""
    form = byte_level(TEMPLATES[template], ("<eos>", *special)).answer_format
    assert (form.tool_format, form.tool_module) == (tool_format, module)
    assert form.bare_json_calls is (template == "llama31")


@pytest.mark.parametrize(
    ("file", "auto_map"),
    [
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
        ("tokenizer_config.json", {"AutoTokenizer": ["org/name--evil.Evil", None]}),
        ("tokenizer_config.json", ["evil.Evil"]),
        ("config.json", {"AutoTokenizer": "evil.Evil"}),
    ],
)
def test_code_of_a_tokenizer_is_never_run(tmp_path, monkeypatch, file, auto_map):
    """transformers asked on stdin whether to run a folder's code, and ran it."""
    folder = write_byte_level(tmp_path)
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w')\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "class Evil(PreTrainedTokenizerFast): pass\n"
    )
    stated = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    stated |= {"auto_map": auto_map, "tokenizer_class": "Evil"}
    (folder / file).write_text(json.dumps(stated))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\n"))
    with pytest.raises(UnsupportedModel, match="Python code from its repository"):
        Tokenizer.read(folder, ())
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[" * 200_000),
        ("tokenizer.json", '{"model": {"type": "BPE", "byte_fallback": "x"}}'),
        ("tokenizer_config.json", '{"tool_parser_type": "x"}'),
        ("tokenizer_config.json", '{"chat_template_type": "x"}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": "x"}'),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("tokenizer_config.json", "5"),
        ("config.json", '{"model_type": "qwen3", "rope_parameters": 2}'),
        ("config.json", '{"model_type": "qwen3", "tie_word_embeddings": "x"}'),
        ("chat_template.jinja", None),
    ],
)
def test_damaged_files_are_one_line(tmp_path, file, content):
    """Readers raise any type of exception for a malformed tokenizer."""
    folder = write_byte_level(tmp_path)
    if content is None:
        (folder / file).write_bytes(b"\xff\xfe")
    else:
        (folder / file).write_text(content)
    message = ""
    try:
        tokenizer = Tokenizer.read(folder, ())
        if tokenizer.has_template:
            tokenizer.render(HI, None)
    except (BadCheckpoint, BadRequest) as error:  # some of the files do not matter to the reader
        message = str(error)
    assert len(message) < 800
    assert "\n" not in message


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """For some families transformers makes up an empty tokenizer, and the question was lost."""
    with pytest.raises(BadCheckpoint, match="has no tokenizer"):
        Tokenizer.read(tmp_path, ())


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{% for %}", "{{ 'x' * 10**9 }}", "{{ x.y.z }}"]
)
def test_a_failing_template_is_one_line(template):
    """Templates fail with any type of exception."""
    tokenizer = byte_level(template, ("<eos>",))
    with pytest.raises(BadRequest, match="the chat template refuses"):
        tokenizer.render(HI, None)
