"""Text to token ids and back, for one target. Knows templates and end tokens, no models."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_wrapper

from dflash_mlx.errors import BadCheckpoint, BadRequest

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`, as chat templates take it."""


class Tokenizer:
    """mlx-lm's tokenizer with the end tokens of a model: the union of all that its files name."""

    def __init__(self, wrapper: TokenizerWrapper, eos_token_ids: Sequence[int] = ()) -> None:
        self._wrapper = wrapper
        self.eos_token_ids = frozenset({*eos_token_ids, *wrapper.eos_token_ids})

    @classmethod
    def read(cls, folder: Path, eos_token_ids: Sequence[int]) -> "Tokenizer":
        """Return the tokenizer in `folder`.

        Raises:
            BadCheckpoint: there is none, or it cannot be read without code of its own.
        """
        try:
            return cls(load_wrapper(folder), eos_token_ids)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = str(error).split("\n")[0]
            raise BadCheckpoint(
                f"{folder} has no readable tokenizer ({reason}); fetch the model again"
            ) from error

    @property
    def has_template(self) -> bool:
        """Whether the model is made for conversations."""
        return bool(self._wrapper.has_chat_template)

    @property
    def has_thinking(self) -> bool:
        """Whether the template knows a thinking mode."""
        return bool(self._wrapper.has_thinking)

    @property
    def thinking_marks(self) -> tuple[str, str] | None:
        """The texts that open and close a thought, where the vocabulary has them."""
        if not self.has_thinking:
            return None
        return self._wrapper.think_start, self._wrapper.think_end

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """Tokens that stand for something else than text, by id."""
        added = self._wrapper.added_tokens_decoder
        return {index: str(token) for index, token in added.items() if token.special}

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """Return the ids of those `texts` that are special tokens, which no answer has as text."""
        return frozenset(index for index, text in self.special_tokens.items() if text in texts)

    @property
    def pad_id(self) -> int | None:
        """The token that fills rows up, None where the model has none."""
        pad: int | None = self._wrapper.pad_token_id
        return pad

    @property
    def n_ids(self) -> int:
        """Ids up to the last that stands for something; a model may have more rows than that."""
        return max(int(index) for index in self._wrapper.get_vocab().values()) + 1

    def opens_thought(self, ids: Sequence[int]) -> bool:
        """Whether a rendered prompt ends inside a thought, as some templates open one."""
        if not self.has_thinking:
            return False
        wrapper = self._wrapper
        return bool(wrapper.rfind_think_start(ids) > wrapper.rfind_think_end(ids))

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, with the begin token where the model wants one."""
        ids: list[int] = self._wrapper.encode(text)
        return ids

    def render(self, messages: Sequence[Message], thinking: bool | None) -> list[int]:
        """Return the ids of a conversation up to where the assistant answers.

        `thinking` None is for models that do not know it; mlx-lm lets others think.

        Raises:
            BadRequest: the template refuses these messages, or there is no template.
        """
        if not self.has_template:
            raise BadRequest(
                "this model has no chat template; use --no-chat-template, or an instruct model"
            )
        options = {} if thinking is None else {"enable_thinking": thinking}
        try:
            ids: list[int] = self._wrapper.apply_chat_template(
                list(messages), add_generation_prompt=True, **options
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadRequest(f"the chat template refuses these messages: {error}") from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens other than those of thinking marks."""
        left_out = self._left_out
        kept = [index for index in ids if left_out is None or index not in left_out]
        text: str = self._wrapper.decode(
            kept, skip_special_tokens=left_out is None, clean_up_tokenization_spaces=False
        )
        return text

    @cached_property
    def _left_out(self) -> frozenset[int] | None:
        """The special tokens that are no text, None where all are.

        Without those that open or close a thought nobody could tell it apart.
        """
        if not self.has_thinking:
            return None
        marks = {*self._wrapper.think_start_tokens, *self._wrapper.think_end_tokens}
        left_out = frozenset(self.special_tokens.keys() - marks)
        return left_out if len(left_out) < len(self.special_tokens) else None
