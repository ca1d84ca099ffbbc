"""A tiny target on disk with a byte tokenizer and a chat template, for `load_target`."""

import json
from pathlib import Path
from typing import Any

from tests.tiny import write_target
from tests.tiny_configs import END

TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<end>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SPECIALS = ("<end>", "<spare>", "<user>", "<assistant>")
"""Ids 256 to 259."""


def tiny_folder(folder: Path, family: str = "qwen3", **changes: Any) -> Path:
    """Write a target with its tokenizer; return the folder."""
    write_target(folder, family, **changes)
    write_tokenizer(folder)
    return folder


def _letter(byte: int) -> str:
    """Return the character of a byte in byte-level tokenizers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [other for other in range(256) if other not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def write_tokenizer(folder: Path, specials: tuple[str, ...] = SPECIALS) -> None:
    """Write a tokenizer of one token per byte, then special tokens; the first is the end token."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = [_letter(byte) for byte in range(256)]
    made = Tokenizer(BPE({letter: at for at, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=specials[0], chat_template=TEMPLATE
    )
    wrapped.save_pretrained(str(folder))
    assert wrapped.convert_tokens_to_ids(specials[0]) == END
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if "chat_template" not in config and not (folder / "chat_template.jinja").exists():
        raise AssertionError("this version of transformers saves templates elsewhere")
