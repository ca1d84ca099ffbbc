"""Which token stands for "not known yet" in a block: one that never comes in a text."""

from collections.abc import Iterator
from itertools import chain

from dflash_mlx.errors import BadRequest
from dflash_mlx.loading.tokenizer import Message, Tokenizer

_MASK, _SPARE = ("mask",), ("reserved", "unused", "extra", "placeholder", "dummy")
_IN_TEXTS = ("endoftext", "end_of_text", "eos", "bos", "unk", "<s>", "</s>")
"""Names of tokens that corpora hold though no conversation does."""


def mask_token(tokenizer: Tokenizer, vocab_size: int) -> int:
    """Return the mask token for a new draft.

    The first there is of: a token called mask; a reserved or unused one; a row of the model's
    vocabulary behind the last token; another special token that conversations do without; the
    padding token. One that ends answers is none of these.

    Raises:
        BadRequest: the tokenizer has no such token.
    """
    taken = {*tokenizer.eos_token_ids, *chain.from_iterable(_conversations(tokenizer))}
    pad = tokenizer.pad_id
    free = {
        index: text.lower()
        for index, text in sorted(tokenizer.special_tokens.items())
        if index not in taken and index < vocab_size and not _in_texts(text.lower())
    }
    for words in (_MASK, _SPARE):
        for index, text in free.items():
            if any(word in text for word in words):
                return index
    if tokenizer.n_ids < vocab_size:
        return tokenizer.n_ids
    for index in free:
        if index != pad:
            return index
    if pad is not None and pad not in taken:
        return pad
    raise BadRequest(
        "the tokenizer has no token that never comes in a text (mask, reserved, special or "
        "padding) and a block needs one; take another target, or --init with a draft for this one"
    )


def _in_texts(name: str) -> bool:
    return any(word in name for word in _IN_TEXTS)


def _conversations(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield token ids of conversations as this model's template renders them."""
    yield tokenizer.encode("Hello")
    if not tokenizer.has_template:
        return
    user: Message = {"role": "user", "content": "Hello"}
    said: Message = {"role": "assistant", "content": "Hi"}
    system: Message = {"role": "system", "content": "Be kind"}
    for messages in ([user], [user, said, user], [system, user, said, user]):
        for thinking in (None, True, False) if tokenizer.has_thinking else (None,):
            try:
                yield tokenizer.render(messages, thinking)
            except BadRequest:
                continue  # a template may refuse a system message
