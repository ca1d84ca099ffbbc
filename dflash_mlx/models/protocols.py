"""The protocols of target and draft models, and the values they exchange with the decode loop.

All arrays are lazy: `models/` never waits for the device. It must not know requests or files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

from dflash_mlx.cache import ContextCache, LayerCache
from dflash_mlx.metal.head_merge import BestTokens

# Letters in this file: B block size, n tokens, D hidden size, F size of the concatenated hidden
# states that a draft reads, V vocabulary, K candidates per draft token.

FusedArgmax = Callable[[mx.array], BestTokens | None]
"""`(hidden [1, n, D]) -> the two best tokens of every row`, or None if logits are needed."""


def no_fused_argmax(hidden: mx.array) -> BestTokens | None:
    """Return None: the best tokens come from the logits."""
    return None


class TargetOutput(NamedTuple):
    """The result of one forward pass through the target's layers."""

    hidden: mx.array
    """[1, n, D], after the final norm."""
    features: mx.array
    """[1, n, F], hidden states after the requested layers, concatenated; F is 0 without any."""


@dataclass(frozen=True)
class TargetShape:
    """The facts about a target that drafts, caches and users depend on."""

    family: str
    hidden_size: int
    n_layers: int
    vocab_size: int
    context_length: int
    row_bytes: int
    """Bytes that one committed token adds to the target's caches."""
    step_bytes: int
    """Bytes of weights that a plain step reads; routed experts count as those of one token."""


class Target(Protocol):
    """A target model: mlx-lm's weights and layers with our forward pass over them."""

    @property
    def shape(self) -> TargetShape:
        """The facts that others depend on."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that has one."""

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n] with the target's scaling."""

    def forward(
        self, tokens: mx.array, caches: Sequence[LayerCache], target_layer_ids: Sequence[int]
    ) -> TargetOutput:
        """Run `tokens` [1, n] through all layers and append their rows to `caches`."""

    def head(self, hidden: mx.array) -> mx.array:
        """Project normed `hidden` [1, n, D] to [1, n, V]. Drafts without a head use this one."""

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the target's own logits [1, n, V], any final scaling or softcap included."""

    @property
    def fused_argmax(self) -> FusedArgmax:
        """Finds the best tokens of normed rows without writing logits, where a kernel does so."""


DRAFT = "draft"
"""`Block.source` of draft tokens that the draft model proposed."""


class Candidates(NamedTuple):
    """The distribution that each draft token was drawn from."""

    ids: mx.array
    """[B - 1, K] token ids."""
    probs: mx.array
    """[B - 1, K] probabilities; each row sums to 1."""


@dataclass(frozen=True)
class Block:
    """The proposal for one round: the draft tokens after the anchor."""

    tokens: mx.array
    """[1, B - 1] draft tokens."""
    draft_is_finite: mx.array
    """Boolean scalar: whether the draft's logits were finite."""
    candidates: Candidates | None = None
    """None for a proposal that was chosen, such as an argmax, and not drawn."""
    source: str = DRAFT
    """What proposed the tokens: the draft model, or the name of a text source."""

    @property
    def block_size(self) -> int:
        """Tokens verified in the round, anchor included."""
        return self.tokens.shape[1] + 1


def empty_block() -> Block:
    """Return the block of a plain step, which has no draft tokens."""
    return Block(mx.zeros((1, 0), mx.int32), mx.array(True))


class Draft(Protocol):
    """A draft model bound to its target."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose hidden states `extend` takes."""

    @property
    def block_size(self) -> int:
        """The block size that the draft was trained for, anchor included."""

    @property
    def row_bytes(self) -> int:
        """Bytes that one committed token adds to the context cache."""

    def make_context(self) -> ContextCache:
        """Return an empty context cache."""

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        """Add context rows for `features` [1, n, F], the first at absolute `position`."""

    def with_sampling(self, temperature: float, seed: int) -> "Draft":
        """Return the draft for a request that samples at `temperature`.

        A draft that draws its tokens puts `candidates` into its blocks.
        """

    def propose(self, anchor: int, block_size: int, context: ContextCache) -> Block:
        """Return `block_size - 1` draft tokens after `anchor` at position `context.length`."""
