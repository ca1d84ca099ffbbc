"""A pair in memory with everything a request needs: models, tokenizer, defaults and costs.

It must not know single requests; it owns no KV cache and no thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_mlx.cache import STEP
from dflash_mlx.config import CacheConfig, SamplingConfig
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.controller.text_policy import TextPolicy
from dflash_mlx.decode.policy import BlockPolicy
from dflash_mlx.engine.text_proposals import TextProposals
from dflash_mlx.kernels.pair_kernels import PairKernels
from dflash_mlx.loading.chat_template import Message
from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.pair import Pair

Prompt = str | Sequence[Message]
"""The next user turn as text, or a whole conversation as messages."""


@dataclass(frozen=True)
class LoadedPair:
    """Models, tokenizer and defaults of one pair, shared by its requests.

    Args:
        sampling: sampling defaults from the model's `generation_config.json`.
        trained_thinking: thinking mode that the draft was trained with; None if unknown.
        no_draft: the reason why there is no draft, if none was found.
        tuning: measured costs and acceptance; None without a draft.
        kernels: the Metal kernels in the models; None without a Metal device.
        copies: whether requests copy draft tokens from the context unless they say otherwise.
        text: what requests learned about draft tokens from text.
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
    tuning: ControllerState | None = None
    kernels: PairKernels | None = None
    copies: bool = False
    text: TextProposals = field(default_factory=TextProposals)

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer: the model's limit, or what the byte budget can hold."""
        shape = self.pair.target.shape
        if self.cache_config.max_bytes is None:
            return shape.context_length
        # row_bytes is 0 for a target of windows and states only: its cache does not grow
        draft_bytes = self.pair.draft.row_bytes if self.pair.draft else 0
        row_bytes = max(shape.row_bytes + draft_bytes, 1)
        spare = STEP * (2 if draft_bytes else 1)  # caches grow by STEP rows at a time
        return max(0, min(shape.context_length, self.cache_config.max_bytes // row_bytes - spare))

    def learn(self, policy: BlockPolicy) -> None:
        """Add the acceptance that a finished request observed to what later requests start with."""
        if isinstance(policy, TextPolicy):
            policy = policy.draft_policy
        if self.tuning is not None and isinstance(policy, AdaptiveBlock):
            self.tuning.learn(policy)
