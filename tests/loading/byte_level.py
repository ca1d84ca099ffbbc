"""Tokenizers over bytes with added tokens and a template, in memory or as a folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from dflash_mlx.loading.tokenizer import Tokenizer


def raw_tokenizer(special: Sequence[str], plain: Sequence[str] = ()) -> RawTokenizer:
    """Return bytes as tokens 0 to 255, then the special tokens, then the added plain ones."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(byte_level.alphabet())
    made = RawTokenizer(
        models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    )
    made.pre_tokenizer, made.decoder = byte_level, decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return made


def byte_level(
    template: str | None, special: Sequence[str], plain: Sequence[str] = ()
) -> Tokenizer:
    """Return our tokenizer; the first special token is the end token."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw_tokenizer(special, plain), eos_token=special[0], chat_template=template
    )
    return Tokenizer(TokenizerWrapper(fast))


def write_byte_level(folder: Path, special: Sequence[str] = ("<eos>",)) -> Path:
    """Write a tokenizer as a folder of files; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    raw_tokenizer(special).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
