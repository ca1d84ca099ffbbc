"""The tokenizer inside a GGUF file, rebuilt as byte-level BPE. It must not know weights.

GGUF stores the name of the pre-tokenizer (`tokenizer.ggml.pre`) and not its rules. Unknown names
are refused, because a similar pre-tokenizer splits most text correctly and some wrongly.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.system.foreign import quoted

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4
"""Token types; both are matched before BPE, and control tokens are special."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_WORDS = _WORDS % r"\p{N}"
_LLAMA_WORDS = _WORDS % r"\p{N}{1,3}"
_PRE_TOKENIZERS = ("smollm", "qwen2", "llama-bpe")


@dataclass(frozen=True)
class GGUFTokenizer:
    """The vocabulary of a file: `tokens[i]` and `types[i]` belong to id i, `merges` are by rank.

    `eos_token_ids` are the tokens that end an answer, the tokenizer's end token first.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    eos_token_ids: tuple[int, ...]
    bos_id: int | None = None
    pad_id: int | None = None
    unknown_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None


def read_tokenizer(metadata: dict[str, Any], path: Path) -> GGUFTokenizer:
    """Return the vocabulary that a file's metadata describes; errors name `path`.

    Raises:
        BadCheckpoint: the vocabulary is missing or contradicts itself.
        UnsupportedModel: the tokenizer or its pre-tokenizer is not supported.
    """
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{path} has the tokenizer {quoted(model)} with pre-tokenizer {quoted(pre)}; GGUF "
            f"support has 'gpt2' with {', '.join(_PRE_TOKENIZERS)}. Give the safetensors "
            "repository instead"
        )
    tokens = texts_of(metadata, "tokens", path)
    merges = tuple(_pair(text) for text in texts_of(metadata, "merges", path))
    stated = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(stated, list) or not isinstance(template, str | None):
        raise BadCheckpoint(
            f"{path}: token_type is {quoted(stated)} and chat_template {quoted(template)}; they "
            "need a list of numbers and a text. Download the file again"
        )
    types = tuple(stated)
    known = set(tokens)
    if len(known) != len(tokens) or len(types) != len(tokens):
        raise BadCheckpoint(
            f"{path} has {len(tokens)} tokens, {len(known)} of them different, and {len(types)} "
            "token types; the three numbers need to be equal. Download the file again"
        )
    used = {part for left, right in merges for part in (left, right, left + right)}
    if strange := sorted(used - known):
        raise BadCheckpoint(
            f"{path} merges {quoted(strange[0])}, which its vocabulary lacks; download it again"
        )

    def token_id(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and (type(value) is not int or not 0 <= value < len(tokens)):
            raise BadCheckpoint(
                f"{path}: {name}_token_id is {quoted(value)}; it needs the id of a token. Download "
                "the file again"
            )
        return value

    ends = [token_id(name) for name in ("eos", "eot", "eom")]
    if ends[0] is None:
        raise BadCheckpoint(
            f"{path} has no eos_token_id, without which an answer cannot end; download it again"
        )
    return GGUFTokenizer(
        tokens=tokens,
        types=types,
        merges=merges,
        pre=pre,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_id=token_id("bos"),
        pad_id=token_id("padding"),
        unknown_id=token_id("unknown"),
        # llama.cpp adds a begin token for this pre-tokenizer unless the file disables it
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")),
        chat_template=template,
    )


def build_tokenizer(vocabulary: GGUFTokenizer) -> "TokenizerWrapper":
    """Return mlx-lm's wrapper around the tokenizer that `vocabulary` describes."""
    # importing transformers takes most of a second, and reading a header does not need it
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
    from transformers import PreTrainedTokenizerFast

    def token(index: int | None) -> str | None:
        return None if index is None else vocabulary.tokens[index]

    make: Any = PreTrainedTokenizerFast  # untyped in transformers
    fast = make(
        tokenizer_object=byte_level_bpe(vocabulary),
        bos_token=token(vocabulary.bos_id),
        eos_token=token(vocabulary.eos_token_ids[0]),
        pad_token=token(vocabulary.pad_id),
        unk_token=token(vocabulary.unknown_id),
        chat_template=vocabulary.chat_template,
        clean_up_tokenization_spaces=False,
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=vocabulary.eos_token_ids)


def byte_level_bpe(vocabulary: GGUFTokenizer) -> "Tokenizer":
    """Return the `tokenizers` object: byte-level BPE, with added tokens matched before it."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing

    ids = {text: index for index, text in enumerate(vocabulary.tokens)}
    # Llama 3 keeps a word that is a token, even where no merges produce it
    whole_words = vocabulary.pre == "llama-bpe"
    bpe = Tokenizer(BPE(vocab=ids, merges=list(vocabulary.merges), ignore_merges=whole_words))
    bpe.pre_tokenizer = _pre_tokenizer(vocabulary.pre)
    bpe.decoder = decoders.ByteLevel()
    if vocabulary.pre == "qwen2":
        bpe.normalizer = normalizers.NFC()
    added = zip(vocabulary.tokens, vocabulary.types, strict=True)
    bpe.add_tokens(
        [
            AddedToken(text, special=kind == _CONTROL, normalized=False)
            for text, kind in added
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    if vocabulary.add_bos and vocabulary.bos_id is not None:
        begin = vocabulary.tokens[vocabulary.bos_id]
        bpe.post_processor = TemplateProcessing(
            single=[begin, "$A"],
            pair=[begin, "$A", begin, "$B"],
            special_tokens=[(begin, vocabulary.bos_id)],
        )
    return bpe


def _pre_tokenizer(name: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if name == "smollm":
        first = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = Regex(_QWEN_WORDS if name == "qwen2" else _LLAMA_WORDS)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _pair(text: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    return left, right


def texts_of(metadata: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    """Return the list of texts under `tokenizer.ggml.KEY`.

    Raises:
        BadCheckpoint: it is missing, empty, or another type.
    """
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise BadCheckpoint(f"{path} lacks tokenizer.ggml.{key}, a list of texts; fetch it again")
    return tuple(value)
