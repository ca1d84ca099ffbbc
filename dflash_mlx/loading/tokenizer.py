"""Text to token ids and back for one target, with its chat template and end tokens.

The only place that loads tokenizers. It must not know models, requests or the decode loop.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_wrapper
from transformers import PreTrainedTokenizerBase

from dflash_mlx.errors import BadCheckpoint, BadRequest
from dflash_mlx.loading.answer_format import AnswerFormat, answer_format
from dflash_mlx.loading.chat_template import (
    ChatTemplate,
    Message,
    ThinkingSwitch,
    ToolCallForm,
)
from dflash_mlx.pairs.model_files import refuse_tokenizer_code
from dflash_mlx.system.foreign import reading

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
"""Files with a vocabulary. For a folder without one, transformers makes an empty tokenizer."""


class Tokenizer:
    """mlx-lm's tokenizer with the end tokens that any file of the model names."""

    def __init__(self, wrapper: TokenizerWrapper, eos_token_ids: Sequence[int] = ()) -> None:
        self._wrapper = wrapper
        self.answer_format: AnswerFormat = answer_format(wrapper, str(wrapper.chat_template or ""))
        ends = self.special_ids(self.answer_format.end_tokens)
        self.eos_token_ids = frozenset({*eos_token_ids, *wrapper.eos_token_ids, *ends})
        self._template = _chat_template(wrapper, self.answer_format.thinking is not None)

    @classmethod
    def read(cls, folder: Path, eos_token_ids: Sequence[int]) -> "Tokenizer":
        """Return the tokenizer in `folder`. Code in the folder is never run.

        Raises:
            BadCheckpoint: the folder has no tokenizer, or it cannot be read.
            UnsupportedModel: the tokenizer needs code from its repository.
        """
        refuse_tokenizer_code(folder)
        if not any((folder / name).is_file() for name in _VOCABULARIES):
            raise BadCheckpoint(
                f"{folder} has no tokenizer; it needs one of {', '.join(_VOCABULARIES)}. "
                "Fetch the model again"
            )
        with reading(folder, "the tokenizer"):
            # without False, transformers offers on stdin to run the repository's code
            wrapper = load_wrapper(folder, {"trust_remote_code": False})
            tokenizer = cls(wrapper, eos_token_ids)
            # some damage shows at the first use only
            tokenizer.decode(tokenizer.encode("text"))
            return tokenizer

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._wrapper.has_chat_template)

    @property
    def has_thinking(self) -> bool:
        """Whether the chat template can switch thinking on and off."""
        return self.thinking_switch is not None

    @property
    def thinking_switch(self) -> ThinkingSwitch | None:
        """The template variable that switches thinking; None without one."""
        return self._template.thinking_switch if self.has_template else None

    @property
    def has_reasoning_effort(self) -> bool:
        """Whether the template reads `reasoning_effort`, as gpt-oss's does."""
        return self.has_template and self._template.has_reasoning_effort

    @property
    def template_variables(self) -> frozenset[str] | None:
        """Variables that the chat template reads; None if its code does not tell."""
        return self._template.variables if self.has_template else frozenset()

    @property
    def thinks_without_switch(self) -> bool | None:
        """Whether answers of a model without a thinking switch start with a thought.

        None if only the answer shows it.
        """
        if self.answer_format.harmony:
            return True
        if self.thinking_marks is None:
            return False
        if not self.has_template:
            return None
        prompt = self._template.render([{"role": "user", "content": "hi"}])
        return True if prompt.rstrip().endswith(self.thinking_marks[0]) else None

    @property
    def tool_call_form(self) -> ToolCallForm:
        """How the template takes the tool calls of an assistant message."""
        return self._template.tool_call_form if self.has_template else ToolCallForm()

    @property
    def offers_tools(self) -> bool:
        """Whether the template writes tools into the prompt."""
        return self.has_template and self._template.offers_tools

    @property
    def thinking_marks(self) -> tuple[str, str] | None:
        """The texts that open and close a thought; None if the vocabulary has none."""
        return self.answer_format.thinking

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """Special tokens by id."""
        added = self._wrapper.added_tokens_decoder
        return {index: str(token) for index, token in added.items() if token.special}

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """Return the ids of those `texts` that are special tokens."""
        return frozenset(index for index, text in self.special_tokens.items() if text in texts)

    @property
    def pad_id(self) -> int | None:
        """The padding token; None if the model has none."""
        pad: int | None = self._wrapper.pad_token_id
        return pad

    @property
    def n_ids(self) -> int:
        """One more than the largest token id; a model may have more rows than that."""
        return max(int(index) for index in self._wrapper.get_vocab().values()) + 1

    def tail(self, ids: Sequence[int], n_tokens: int = 64) -> str:
        """Return the text of the last tokens, with all special tokens."""
        text: str = self._wrapper.decode(
            list(ids[-n_tokens:]), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, with one begin token if the model uses one."""
        begin = self._wrapper.bos_token
        ids: list[int] = self._wrapper.encode(
            text, add_special_tokens=not (begin and text.startswith(begin))
        )
        return ids

    def render(
        self,
        messages: Sequence[Message],
        thinking: bool | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation up to where the assistant writes.

        Args:
            messages: the conversation.
            thinking: thinking mode; None leaves it to the template.
            tools: JSON schemas of the tools offered.
            continue_final: whether the assistant continues the last message.
            variables: further variables of the template.

        Raises:
            BadRequest: the template refuses these messages, or there is no template.
        """
        if not self.has_template:
            raise BadRequest(
                "this model has no chat template; use --no-chat-template, or an instruct model"
            )
        if thinking is not None:
            switch = self.thinking_switch or "enable_thinking"
            variables = {switch: thinking, **(variables or {})}
        text = self._template.render(messages, tools, continue_final, **(variables or {}))
        ids: list[int] = self._wrapper.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, with those special tokens that mark thoughts and calls."""
        dropped = self._dropped
        text: str = self._wrapper.decode(
            [index for index in ids if index not in dropped],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return text

    @cached_property
    def _dropped(self) -> frozenset[int]:
        """The special tokens that are not part of an answer's text."""
        vocabulary = self._wrapper.get_vocab()
        kept = {vocabulary[text] for text in self.answer_format.text_tokens}
        return frozenset({*self.special_tokens, *self._wrapper.all_special_ids} - kept)


def _chat_template(wrapper: TokenizerWrapper, has_thinking: bool) -> ChatTemplate:
    """Return the chat template of a tokenizer, which may be code of mlx-lm or transformers."""
    own_method = type(wrapper._tokenizer).apply_chat_template
    coded = own_method is not PreTrainedTokenizerBase.apply_chat_template
    if coded or wrapper.init_kwargs.get("chat_template_type"):
        return ChatTemplate(None, {}, wrapper.apply_chat_template)
    # mlx-lm's default: models with thinking marks think
    defaults = {"enable_thinking": has_thinking}
    return ChatTemplate(wrapper.chat_template, wrapper.special_tokens_map, None, defaults)
