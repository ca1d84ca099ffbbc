"""Thoughts whose marks are special tokens, as Gemma 4's are."""

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash_mlx.engine.thinking import ThinkingSplitter
from dflash_mlx.loading.tokenizer import Tokenizer as OurTokenizer

SPECIAL = ("<eos>", "<turn>", "<|channel>", "<channel|>")
WRITTEN = "<turn><|channel>thought\nIt is short.<channel|>Yes.<eos>"


@pytest.fixture
def tokenizer():
    """Bytes as tokens, and marks of which none is text."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(byte_level.alphabet())
    model = models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    made = Tokenizer(model)
    made.pre_tokenizer, made.decoder = byte_level, decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<eos>", chat_template="{{ messages[0]['content'] }}"
    )
    return OurTokenizer(TokenizerWrapper(fast))


def test_a_thought_is_told_from_the_answer_by_special_tokens(tokenizer):
    """With all special tokens left out, thoughts were shown as the answer."""
    text = tokenizer.decode(tokenizer.encode(WRITTEN))
    assert text == "<|channel>thought\nIt is short.<channel|>Yes."
    splitter = ThinkingSplitter(tokenizer.thinking_marks)
    pieces = [*splitter.feed(text), *splitter.finish()]
    assert "".join(text for text, thought in pieces if not thought) == "Yes."


def test_other_special_tokens_are_no_text(tokenizer):
    """An end token in the answer's text is said aloud by whoever reads it out."""
    assert tokenizer.decode(tokenizer.encode("<turn>Hi<eos>")) == "Hi"
