"""The DFlash 2 draft: convolutions around each sublayer, and a selector of a token path.

The backbone is DFlash's. A grouped dynamic convolution mixes each block row with the rows before
it, before and after attention and feed-forward; one projection of the sublayer's input gives both
kernels. The selector takes the K best tokens of every slot, and chooses from left to right by
`logit + <A[previous] * (H h), C[candidate]>`, where `previous` is the token chosen before.

Letters: D hidden size, B rows of the block, S = B - 1 slots, T kernel size, G groups of channels,
K candidates, R rank of the codebooks. Source: the official `dflash` package 0.1.0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.cache import ContextCache
from dflash_mlx.models.draft.config import ConvolutionConfig, DraftConfig, SelectorConfig
from dflash_mlx.models.draft.dflash import Attend, BoundDraft, DraftLayer, DraftModel
from dflash_mlx.models.protocols import (
    Block,
    Candidates,
    FusedArgmax,
    Target,
    no_fused_argmax,
)
from dflash_mlx.models.random_keys import RandomStream, draw, row_key

Pick = Callable[[mx.array, int], mx.array]
"""`(scores [K] of a slot's candidates, slot) -> index of the chosen candidate`."""


class BlockConvolution(nn.Module):
    """Two causal convolutions within a block; each row has its own kernels."""

    def __init__(self, dim: int, config: ConvolutionConfig) -> None:
        super().__init__()
        self.kernel_size, self.n_groups = config.kernel_size, dim // config.group_size
        self.base_kernel = mx.zeros((2, self.kernel_size, dim))
        self.kernel_projection = nn.Linear(dim, 2 * self.kernel_size * self.n_groups, bias=False)

    def before(self, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Return rows [N, B, D] convolved, and the kernels [N, B, T, G] for `after`."""
        shape = (*rows.shape[:2], 2, self.kernel_size, self.n_groups)
        kernels = self.kernel_projection(rows).reshape(shape)
        return self.convolve(rows, kernels[:, :, 0], self.base_kernel[0]), kernels[:, :, 1]

    def after(self, rows: mx.array, kernels: mx.array) -> mx.array:
        """Return a sublayer's output rows [N, B, D] convolved with `kernels`."""
        return self.convolve(rows, kernels, self.base_kernel[1])

    def convolve(self, rows: mx.array, kernels: mx.array, base: mx.array) -> mx.array:
        """Return rows summed with earlier rows, weighted by `base` [T, D] + `kernels` [N, B, T, G].

        Rows before the block count as zero.
        """
        n_blocks, n_rows, dim = rows.shape
        grouped = rows.reshape(n_blocks, n_rows, self.n_groups, -1)
        total = mx.zeros_like(grouped)
        for lag in range(min(self.kernel_size, n_rows)):
            shifted = mx.pad(grouped[:, : n_rows - lag], [(0, 0), (lag, 0), (0, 0), (0, 0)])
            fixed = base[lag].reshape(self.n_groups, -1).astype(rows.dtype)
            total = total + (fixed + kernels[:, :, lag, :, None]) * shifted
        return total.reshape(n_blocks, n_rows, dim)


class ConvolvedLayer(DraftLayer):
    """A draft layer with convolutions around each of its sublayers."""

    def __init__(self, config: DraftConfig, index: int) -> None:
        super().__init__(config, index)
        assert config.convolution is not None
        self.attention_conv = BlockConvolution(config.hidden_size, config.convolution)
        self.mlp_conv = BlockConvolution(config.hidden_size, config.convolution)

    def mix(self, rows: mx.array, attend: Attend) -> mx.array:
        """Return [N, B, D] for block rows [N, B, D], whose attention is `attend`."""
        mixed, kernels = self.attention_conv.before(self.input_layernorm(rows))
        rows = rows + self.attention_conv.after(attend(mixed), kernels)
        mixed, kernels = self.mlp_conv.before(self.post_attention_layernorm(rows))
        return rows + self.mlp_conv.after(self.mlp(mixed), kernels)


class Slots(NamedTuple):
    """The candidates of a block's slots."""

    ids: mx.array
    """[B - 1, K] candidates."""
    unary: mx.array
    """[B - 1, K], the candidates' logits."""
    context: mx.array
    """[B - 1, R], the slots' hidden rows in the codebooks' space."""


class Path(NamedTuple):
    """The chosen token of each slot, with its candidates."""

    tokens: mx.array
    """[B - 1]."""
    ids: mx.array
    """[B - 1, K] candidates."""
    scores: mx.array
    """[B - 1, K], given the tokens chosen before."""


@dataclass(frozen=True)
class Picking:
    """Chooses a slot's token: the best, or sampled with the random key of its position.

    Sampling takes the argmax of the scores over the temperature plus `noise` (Gumbel).
    """

    temperature: float
    seed: int
    anchor_position: int

    def __call__(self, scores: mx.array, slot: int) -> mx.array:
        """Return the index of the candidate chosen from `scores` [K]."""
        if self.temperature <= 0:
            return mx.argmax(scores)
        position = self.anchor_position + 1 + slot
        return draw(scores[None] / self.temperature, self.seed, position, RandomStream.DRAFT)[0]

    def noise(self, n_slots: int, n_candidates: int) -> mx.array:
        """Return the Gumbel noise [S, K] of sampling; zeros where the best is chosen."""
        if self.temperature <= 0:
            return mx.zeros((n_slots, n_candidates))
        keys = [
            row_key(self.seed, self.anchor_position + 1 + slot, RandomStream.DRAFT)
            for slot in range(n_slots)
        ]
        return mx.stack([mx.random.gumbel((n_candidates,), key=key) for key in keys])


class CandidateSelector(nn.Module):
    """Chooses one candidate of each slot from left to right."""

    def __init__(self, config: DraftConfig, selector: SelectorConfig) -> None:
        super().__init__()
        self.top_k, self.n_ids = selector.top_k, config.vocab_size
        self.predecessor_codebook = nn.Embedding(config.vocab_size, selector.rank)
        self.successor_codebook = nn.Embedding(config.vocab_size, selector.rank)
        self.hidden_projection = nn.Linear(config.hidden_size, selector.rank, bias=False)

    def __call__(
        self, hidden: mx.array, ids: mx.array, unary: mx.array, anchor: int, pick: Pick
    ) -> Path:
        """Return the path that `pick` chooses after `anchor`.

        `hidden` [1, B - 1, D] is normed, `ids` [B - 1, K] are the candidates and `unary` their
        logits.
        """
        # a padded target vocabulary may have more ids than the codebook
        before = mx.array(min(anchor, self.n_ids - 1))
        return self.forward(before, Slots(ids, unary, self.hidden_projection(hidden)[0]), pick)

    def forward(self, before: mx.array, slots: Slots, pick: Pick) -> Path:
        """Return the path that `pick` chooses after the token `before`, a scalar."""
        ids, unary, context = slots
        successors = self.successor_codebook(ids)
        tokens, scores = [], []
        for slot in range(ids.shape[0]):
            # a quantized embedding takes arrays of ids, not scalars
            follows = self.predecessor_codebook(before[None])[0] * context[slot]
            scores.append(unary[slot] + (successors[slot] * follows).sum(axis=-1))
            before = mx.take(ids[slot], pick(scores[-1], slot))
            tokens.append(before)
        return Path(mx.stack(tokens), ids, mx.stack(scores))


class SelectingModel(DraftModel):
    """The weights of a DFlash 2 draft and its forward pass."""

    layer_class = ConvolvedLayer

    def __init__(self, config: DraftConfig, own_embedding: bool, own_head: bool) -> None:
        super().__init__(config, own_embedding, own_head)
        assert config.selector is not None
        self.candidate_selector = CandidateSelector(config, config.selector)


class SelectingDraft(BoundDraft):
    """A DFlash 2 draft with its target; greedy unless `with_sampling` sets a temperature."""

    model: SelectingModel

    def __init__(
        self, model: SelectingModel, target: Target, temperature: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__(model, target)
        self.temperature = temperature
        self.seed = seed
        self.fused_candidates: FusedArgmax = no_fused_argmax
        """Finds the candidates of normed rows [1, B - 1, D] without logits, or gives None."""

    def with_sampling(self, temperature: float, seed: int) -> "SelectingDraft":
        """Return this draft, sampling its path at `temperature` with the request's seed."""
        changed = SelectingDraft(self.model, self.target, temperature, seed)
        changed.fused_candidates = self.fused_candidates
        return changed

    def propose(self, anchor: int, n_rows: int, context: ContextCache) -> Block:
        """Propose the selector's path after `anchor`; candidates are set when it is sampled."""
        hidden = self.hidden(anchor, n_rows, context)
        ids, unary, largest = self.candidates(self.for_head(hidden))
        pick = Picking(self.temperature, self.seed, context.length)
        path = self.model.candidate_selector(hidden, ids, unary, anchor, pick)
        finite = mx.isfinite(largest).all() & mx.isfinite(path.scores).all()
        candidates = None
        if self.temperature > 0:
            candidates = Candidates(path.ids, mx.softmax(path.scores / self.temperature, axis=-1))
        return Block(path.tokens[None], finite, candidates)

    def candidates(self, hidden: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Return ids and logits [B - 1, K] of the candidates, best first, and a bound [B - 1].

        The bound of a row is finite if all its logits are finite.
        """
        if (found := self.fused_candidates(hidden)) is not None:
            return found.tokens, found.logits, found.log_sum_exp
        logits, top_k = self.logits(hidden)[0], self.model.candidate_selector.top_k
        ids = mx.argpartition(logits, -top_k, axis=-1)[:, -top_k:]
        unary = mx.take_along_axis(logits, ids, axis=-1)
        # Noise is drawn per candidate in this order, which argpartition leaves open.
        order = mx.argsort(-unary, axis=-1)
        ids, unary = (mx.take_along_axis(array, order, axis=-1) for array in (ids, unary))
        return ids, unary, mx.max(logits, axis=-1)
