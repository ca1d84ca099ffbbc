"""Sessions with real template structures: cached prefixes, channels, calls from clients."""

import json

import mlx.core as mx
import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.resolved_request import resolve_request
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.models.pair import Pair
from tests.loading.byte_level import byte_level
from tests.loading.test_chat_template import TEMPLATES
from tests.tiny import loaded_pair, tiny_target
from tests.tiny_configs import CONFIGS

HARMONY = ("<|return|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>")
THINK = ("<think>", "</think>")
QUESTION = "a question of some length " * 3


def open_engine(family, tokenizer, **changes):
    """An engine of a tiny target whose vocabulary has room for the added tokens."""
    size = {"vocab_size": 300}
    inner = CONFIGS[family].get("text_config")
    changes |= {"text_config": {**inner, **size}} if inner else size
    worker = Worker("test")
    pair = worker.run(lambda: Pair(tiny_target(family, **changes)))
    return Engine(worker.run(lambda: loaded_pair(pair, tokenizer=tokenizer)), worker)


def forced(tokenizer, text):
    """Return a processor that makes the model write `text` and end."""
    ids = [*tokenizer.encode(text), *tokenizer.eos_token_ids]
    began = []

    def process(tokens, logits):
        began.append(len(tokens))
        token = ids[len(tokens) - began[0]]
        return mx.where(mx.arange(logits.shape[-1]) == token, 0.0, -1e9)[None]

    return process


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "gemma3_text"])
@pytest.mark.parametrize("n_tokens", [20, 120])
def test_later_turns_reuse_the_prefix_of_templates_that_drop_thoughts(family, n_tokens):
    """Hybrids prefilled the whole conversation every turn, windowed models after long answers."""
    tokenizer = byte_level(TEMPLATES["qwen35"], ("<|im_end|>", "<|im_start|>"), THINK)
    with open_engine(family, tokenizer) as engine:
        session = engine.session()
        first = session.generate(QUESTION, GenerationConfig(max_tokens=n_tokens))
        second = session.generate(QUESTION, GenerationConfig(max_tokens=n_tokens))
    # the prompt without its opened thought, up to the answer
    assert second.cached_tokens >= first.prompt_tokens - len("assistant\n") - 4
    assert second.cached_tokens > 80


def test_channels_are_kept_apart_in_results_and_history():
    """Thought and answer ran together, and both went back into the history as content."""
    tokenizer = byte_level(TEMPLATES["gpt_oss"], HARMONY)
    text = "<|channel|>analysis<|message|>Be polite.<|end|><|start|>assistant"
    text += "<|channel|>final<|message|>Hello!"
    with open_engine("gpt_oss", tokenizer) as engine:
        session = engine.session()
        config = GenerationConfig(logits_processors=(forced(tokenizer, text),))
        chunks = list(session.stream("hi", config))
        result = chunks[-1].result
        session.generate("again", GenerationConfig(max_tokens=1))
        prompt = tokenizer.tail(tokenizer.render(session.messages[:-1], None), 200)
    assert (result.content, result.reasoning) == ("Hello!", "Be polite.")
    assert "".join(chunk.text for chunk in chunks) == result.text == text
    assert "".join(c.text for c in chunks if not c.thinking) == "Hello!"
    assert session.messages[1] == {
        "role": "assistant",
        "content": "Hello!",
        "reasoning_content": "Be polite.",
    }
    assert "<|channel|>final<|message|>Hello!<|end|>" in prompt
    assert "polite" not in prompt


def test_calls_from_clients_are_rendered():
    """Arguments as text made templates that loop over them fail."""
    function = {"name": "w", "arguments": json.dumps({"city": "Paris"})}
    call = {"type": "function", "function": function}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "20 C"},
    ]
    tokenizer = byte_level(TEMPLATES["qwen3_coder"], ("<|im_end|>", "<|im_start|>"))
    with open_engine("qwen3", tokenizer) as engine:
        assert engine.generate(messages, GenerationConfig(max_tokens=2)).generated_tokens == 2


def test_a_last_message_of_the_assistant_is_continued():
    """A prefilled answer was closed, and a second answer began."""
    tokenizer = byte_level(TEMPLATES["chatml"], ("<|im_end|>", "<|im_start|>"))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    with open_engine("qwen3", tokenizer) as engine:
        session = engine.session()
        result = session.generate(messages, GenerationConfig(max_tokens=3))
        assert result.prompt_tokens == len(tokenizer.render(messages, None, continue_final=True))
        assert session.messages == [
            messages[0],
            {"role": "assistant", "content": "Once" + result.content},
        ]


@pytest.mark.parametrize(
    ("template", "special", "config", "expected"),
    [
        ("chatml", ("<|im_end|>",), {"thinking": True}, "no switch"),
        ("chatml", ("<|im_end|>",), {"thinking": False}, "no switch"),
        ("minimax", ("<|im_end|>",), {"thinking": False}, "no switch"),
        ("minimax", ("<|im_end|>",), {"thinking": True}, None),
        ("gpt_oss", HARMONY, {"thinking": False}, "use reasoning_effort"),
        ("gpt_oss", HARMONY, {"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ("qwen3", ("<|im_end|>",), {"reasoning_effort": "high"}, "does not read it"),
        (
            "qwen3",
            ("<|im_end|>",),
            {"chat_template_kwargs": {"enable_thinkin": 1}},
            "does not read",
        ),
        (
            "llama31",
            ("<|e|>",),
            {"chat_template_kwargs": {"date_string": "x"}},
            {"date_string": "x"},
        ),
    ],
)
def test_switches_that_the_template_lacks_are_refused(target, template, special, config, expected):
    """The first line of the output named a thinking mode that the prompt did not have."""
    tokenizer = byte_level(TEMPLATES[template], special, THINK)
    loaded = loaded_pair(Pair(target), tokenizer=tokenizer)
    if isinstance(expected, str):
        with pytest.raises(BadRequest, match=expected):
            resolve_request(loaded, GenerationConfig(**config))
        return
    request = resolve_request(loaded, GenerationConfig(**config))
    assert request.thinking is None
    assert request.template_variables == (expected or {})


def test_the_default_of_a_switch_is_the_template_s_own(target):
    """`thinking` is off in templates that have it, `enable_thinking` on."""
    for template, default in (("deepseek_v31", False), ("qwen3", True)):
        tokenizer = byte_level(TEMPLATES[template], ("<eos>",), THINK)
        assert resolve_request(loaded_pair(Pair(target), tokenizer=tokenizer)).thinking is default
