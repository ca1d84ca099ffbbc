"""What the decode loop needs of a target and of a draft.

Letters: B rows of a block (anchor and B - 1 draft tokens), n rows in general, D hidden size,
F width of the concatenated taps, V vocabulary. Everything returned here is lazy: nothing in
`models/` waits for the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

from dflash_mlx.cache import ContextCache, LayerCache
from dflash_mlx.metal.head_merge import BestTokens

FindBest = Callable[[mx.array], BestTokens | None]
"""`(hidden [1, n, D]) -> the best token of every row`, None where only logits will tell."""


def no_fused_argmax(hidden: mx.array) -> BestTokens | None:
    """Leave it to the logits."""
    return None


class TargetOutput(NamedTuple):
    """One forward pass through the target's layers."""

    hidden: mx.array
    """[1, n, D], after the final norm."""
    features: mx.array
    """[1, n, F], raw outputs of the tapped layers side by side; F is 0 without taps."""


@dataclass(frozen=True)
class TargetShape:
    """The facts about a target that a draft, a cache and a user can depend on."""

    family: str
    hidden_size: int
    n_layers: int
    vocab_size: int
    context_length: int
    row_bytes: int
    """Bytes that one committed token adds to the target's caches."""
    step_bytes: int
    """Bytes of weights that a plain step reads; of routed experts those that a token takes."""


class Target(Protocol):
    """A target model: weights and layers of mlx-lm, our walk over them."""

    @property
    def shape(self) -> TargetShape:
        """The facts others depend on."""

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows."""

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n], scaled as the target scales them."""

    def forward(
        self, tokens: mx.array, caches: Sequence[LayerCache], target_layer_ids: Sequence[int]
    ) -> TargetOutput:
        """Run `tokens` [1, n] through all layers, appending their rows to `caches`."""

    def head(self, hidden: mx.array) -> mx.array:
        """Project normed `hidden` [1, n, D] to [1, n, V]; a draft borrows this projection."""

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits [1, n, V] that the target itself predicts with."""

    @property
    def best(self) -> FindBest:
        """Finds the best tokens of normed rows without logits, or leaves it."""


class Candidates(NamedTuple):
    """What a draft token was drawn from, where it was drawn and not chosen."""

    ids: mx.array
    """[B - 1, K] token ids."""
    probs: mx.array
    """[B - 1, K] probabilities, each row summing to 1."""


@dataclass(frozen=True)
class Block:
    """A draft's proposal for one round.

    `tokens` is [1, B - 1]. `healthy` is a boolean scalar: the draft's logits were finite.
    `candidates` is None for a proposal that is certain (one-hot), such as an argmax.
    """

    tokens: mx.array
    healthy: mx.array
    candidates: Candidates | None = None

    @property
    def n_rows(self) -> int:
        """Rows of the block, anchor included."""
        return self.tokens.shape[1] + 1


def no_draft() -> Block:
    """Return the block of a plain step: an anchor and nothing behind it."""
    return Block(mx.zeros((1, 0), mx.int32), mx.array(True))


class Draft(Protocol):
    """A draft bound to its target."""

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs `extend` takes."""

    @property
    def block_size(self) -> int:
        """Rows of a block the draft was trained for, anchor included."""

    @property
    def row_bytes(self) -> int:
        """Bytes that one committed token adds to the context cache."""

    def make_context(self) -> ContextCache:
        """Return an empty context cache."""

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        """Add context rows for `features` [1, n, F], the first at absolute `position`."""

    def with_sampling(self, temperature: float, seed: int) -> "Draft":
        """Return the draft as it proposes to a request that samples at `temperature`.

        One that then draws its tokens puts `candidates` into its blocks.
        """

    def propose(self, anchor: int, n_rows: int, context: ContextCache) -> Block:
        """Propose `n_rows - 1` tokens to follow `anchor`, which stands at `context.length`."""
