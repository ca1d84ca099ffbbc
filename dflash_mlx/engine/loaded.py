"""A pair in memory with everything a request depends on. Holds no rows and no thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_mlx.cache import STEP
from dflash_mlx.config import CacheConfig, GenerationConfig, SamplingConfig
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.tuning import Tuning
from dflash_mlx.decode.policy import BlockPolicy, FixedBlock
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.pair_kernels import PairKernels
from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.tokenizer import Message, Tokenizer
from dflash_mlx.models.pair import Pair

Prompt = str | Sequence[Message]
"""The next user turn as text, or a whole conversation as messages."""

_QUANTIZED_METAL_ROWS = 5
"""Rows of a round on a quantized target on Metal until measured: the official package's advice."""


@dataclass(frozen=True)
class LoadedPair:
    """Models, tokenizer and defaults of one pair.

    Its requests share `tuning`, and `kernels` where there is a device to launch them on.
    `sampling` is what the model's own generation config asks for. `trained_thinking` is the mode
    that the draft was trained for, None where no card says one. `no_draft` says why there is no
    draft, where none was found.
    """

    pair: Pair
    tokenizer: Tokenizer
    sampling: SamplingConfig
    compute: Compute
    cache_config: CacheConfig
    model_name: str
    draft_name: str | None
    blas: str
    quantized: bool
    trained_thinking: bool | None = None
    no_draft: str | None = None
    tuning: Tuning | None = None
    kernels: PairKernels | None = None

    @property
    def context_length(self) -> int:
        """Rows of context: the model's length, or what the byte budget holds if that is less."""
        shape = self.pair.target.shape
        if self.cache_config.max_bytes is None:
            return shape.context_length
        # a target of windows and states alone does not grow
        draft_bytes = self.pair.draft.row_bytes if self.pair.draft else 0
        row_bytes = max(shape.row_bytes + draft_bytes, 1)
        spare = STEP * (2 if draft_bytes else 1)  # caches grow by so many rows at once
        return max(0, min(shape.context_length, self.cache_config.max_bytes // row_bytes - spare))

    def block_size(self, config: GenerationConfig) -> int:
        """Return the most rows of a round that `config` leads to, 1 without drafting."""
        draft = self.pair.draft
        if draft is None:
            return 1
        if config.block_size is not None:
            return config.block_size
        if self.tuning is not None:
            return self.tuning.costs.max_rows
        if self.quantized and not self.compute.dense:
            return min(_QUANTIZED_METAL_ROWS, draft.block_size)
        return draft.block_size

    def adapts(self, config: GenerationConfig) -> bool:
        """Whether the rows of every round are chosen by what they cost and bring."""
        return self.tuning is not None and config.block_size is None

    def policy(self, config: GenerationConfig) -> BlockPolicy:
        """Return the block policy of one request: measured widths, unless it names its own."""
        if self.tuning is None:
            return FixedBlock(self.block_size(config))
        if config.block_size is None:
            return self.tuning.policy()
        return FixedBlock(config.block_size, self.tuning.overlap(config.block_size))

    def learn(self, policy: BlockPolicy) -> None:
        """Let later requests begin with what a finished one has found out."""
        if self.tuning is not None and isinstance(policy, AdaptiveBlock):
            self.tuning.learn(policy)

    def thinking(self, config: GenerationConfig) -> bool | None:
        """Return whether the answer is thought about first; None where there is no such mode.

        Where neither the request nor a card says so, a model that can think does, as in mlx-lm.
        """
        if not (self.tokenizer.has_thinking and config.chat_template):
            return None
        asked = self.trained_thinking if config.thinking is None else config.thinking
        return True if asked is None else asked

    def notices(self, config: GenerationConfig) -> list[str]:
        """Return what a user should know about how a request will run."""
        notices = [self.no_draft] if self.no_draft else []
        trained = self.trained_thinking if self.pair.draft else None
        thinking = self.thinking(config)
        if None not in (trained, thinking) and thinking != trained:
            mode = "on" if trained else "off"
            notices.append(
                f"this draft was trained with thinking {mode}; acceptance may be about half"
            )
        return notices

    def check(self, prompt: Prompt, config: GenerationConfig) -> None:
        """Refuse by name what this pair cannot honour.

        Raises:
            BadRequest: an empty prompt, or an option outside what the pair offers.
        """
        if not prompt or (isinstance(prompt, str) and not prompt.strip()):
            raise BadRequest("the prompt is empty; give it some text")
        if isinstance(prompt, str) and any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise BadRequest("the prompt holds half a character; decode it as UTF-8 text first")
        draft, block = self.pair.draft, config.block_size
        if block is not None and block > 1 and draft is None:
            raise BadRequest(
                f"block_size is {block} and there is no draft; use block_size 1, or load a draft"
            )
        if block is not None and draft is not None and block > draft.block_size:
            raise BadRequest(
                f"block_size is {block}; this draft was trained for blocks of {draft.block_size}, "
                f"so it needs 1 to {draft.block_size}"
            )
        if config.thinking and not self.tokenizer.has_thinking:
            raise BadRequest("this model has no thinking mode; leave thinking off")
        sampling = config.sampling or self.sampling
        vocab = self.pair.target.shape.vocab_size
        if strange := [token for token in sampling.logit_bias if token >= vocab]:
            raise BadRequest(f"logit_bias names token {strange[0]}; this model has {vocab} tokens")
