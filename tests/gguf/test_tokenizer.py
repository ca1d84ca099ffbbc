"""The tokenizer rebuilt from GGUF encodes and decodes as the original does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_mlx.gguf.header import read_header
from dflash_mlx.gguf.tokenizer import (
    GGUFTokenizer,
    build_tokenizer,
    byte_level_bpe,
    read_tokenizer,
)
from tests.gguf.embedded import embedded_target
from tests.gguf.writer import tiny_metadata

TEXTS = [
    "the other thing",
    " leading and trailing  ",
    "Größe, naïve, Ελληνικά, русский, العربية, 日本語, ไทย",
    "🙂👩‍👩‍👧‍👦🇩🇪 and a lone e\u0301",
    "def f(x):\n\treturn {'a': x ** 2}  # 1234567890\n\n\n",
    "tabs\t\tand\r\nreturns",
    "\u200b\ufeff\u00a0",
    "don't WE'LL I'm",
    "<|im_start|> is text, <think> too",
    "",
]


@pytest.fixture
def vocabulary() -> GGUFTokenizer:
    return read_tokenizer(tiny_metadata(), Path("m.gguf"))


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_restored_by_decoding(vocabulary: GGUFTokenizer, pre: str, text: str) -> None:
    """Text in other scripts became question marks."""
    bpe = byte_level_bpe(replace(vocabulary, pre=pre))
    ids = bpe.encode(text, add_special_tokens=False).ids
    normal = bpe.normalizer.normalize_str(text) if bpe.normalizer else text
    assert bpe.decode(ids, skip_special_tokens=False) == normal


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a12 the12", ["a", "1", "2", "Ġ", "the", "1", "2"]),
        ("smollm", "the  the", ["the", "Ġ", "Ġ", "the"]),
        ("qwen2", "the12", ["the", "1", "2"]),
        ("llama-bpe", "the12123", ["the", "12", "1", "2", "3"]),
    ],
)
def test_digits_split_as_the_models_were_trained(
    vocabulary: GGUFTokenizer, pre: str, text: str, pieces: list[str]
) -> None:
    """'12' as one token is a token that the model was not trained with."""
    assert (
        byte_level_bpe(replace(vocabulary, pre=pre)).encode(text).tokens[-len(pieces) :] == pieces
    )


def test_llama_3_keeps_a_word_that_is_a_token(vocabulary: GGUFTokenizer) -> None:
    """Words of Llama 3's vocabulary that no merges produce were split."""
    unmerged = replace(vocabulary, merges=vocabulary.merges[:1])
    assert byte_level_bpe(replace(unmerged, pre="llama-bpe")).encode("the").tokens == ["the"]
    assert byte_level_bpe(unmerged).encode("the").tokens == ["th", "e"]


def test_qwen_composes_characters(vocabulary: GGUFTokenizer) -> None:
    """An accent typed as two code points gave other tokens."""
    bpe = byte_level_bpe(replace(vocabulary, pre="qwen2"))
    assert bpe.encode("e\u0301").ids == bpe.encode("é").ids


def test_control_tokens_are_special_and_user_defined_ones_are_words(
    vocabulary: GGUFTokenizer,
) -> None:
    """The end token was printed, or <think> was dropped."""
    bpe = byte_level_bpe(vocabulary)
    assert bpe.encode("<|start|>the<|end|><think>").ids == [257, 259, 256, 261]
    assert bpe.decode([257, 259, 256, 261]) == "the<think>"


def test_special_tokens_in_text_can_be_encoded_as_text(vocabulary: GGUFTokenizer) -> None:
    """A user who pasted '<|end|>' ended their own turn."""
    tokenizer = build_tokenizer(vocabulary)
    messages = [{"role": "user", "content": "the"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == [
        257, 259, 256, 257,
    ]  # fmt: skip
    apart = tokenizer.encode("<|end|>", add_special_tokens=False, split_special_tokens=True)
    assert 256 not in apart
    assert tokenizer.decode(apart) == "<|end|>"


def test_a_begin_token_is_added_where_the_file_asks_for_it(vocabulary: GGUFTokenizer) -> None:
    """Llama 3 answers worse without its begin token."""
    begin = read_tokenizer(tiny_metadata(**{"tokenizer.ggml.pre": "llama-bpe"}), Path("m"))
    assert begin.add_bos
    assert build_tokenizer(begin).encode("the") == [257, 259]
    assert build_tokenizer(begin).encode("the", add_special_tokens=False) == [259]
    assert build_tokenizer(vocabulary).encode("the") == [259]


def test_mlx_lms_wrapper_knows_the_end_tokens_and_streams(vocabulary: GGUFTokenizer) -> None:
    """Generation continued after the end token, or half of a character was printed."""
    tokenizer = build_tokenizer(replace(vocabulary, eos_token_ids=(256, 257)))
    assert tokenizer.eos_token_ids == {256, 257}
    assert tokenizer.has_chat_template
    text = "the naïve 🙂 12"
    detokenizer = tokenizer.detokenizer
    text_so_far = ""
    for token in tokenizer.encode(text):
        detokenizer.add_token(token)
        text_so_far += detokenizer.last_segment
        assert "\ufffd" not in text_so_far
    detokenizer.finalize()
    assert text_so_far + detokenizer.last_segment == text


@pytest.fixture(scope="module")
def embedded() -> GGUFTokenizer:
    _, path = embedded_target()
    return read_tokenizer(read_header(path).metadata, path)


@pytest.mark.embedded
def test_smollm2_splits_its_own_text_as_it_wrote_it(embedded: GGUFTokenizer) -> None:
    """A similar pre-tokenizer splits a few words wrongly.

    The dialogues hold token ids that the model was given and generated.
    """
    tokenizer = build_tokenizer(embedded)
    file = Path(__file__).parent.parent / "golden" / "smollm2_ids.json"
    for prompt, answer in json.loads(file.read_text()):
        ids = prompt + answer
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
        head, tail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
        question = tokenizer.decode(prompt).split(head, 1)[1].removesuffix(tail)
        messages = [{"role": "user", "content": question}]
        assert tokenizer.apply_chat_template(messages, add_generation_prompt=True) == prompt


@pytest.mark.embedded
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_round_trips_every_script(embedded: GGUFTokenizer, text: str) -> None:
    """Text in other scripts became question marks."""
    bpe = byte_level_bpe(embedded)
    assert bpe.decode(bpe.encode(text).ids, skip_special_tokens=False) == text
