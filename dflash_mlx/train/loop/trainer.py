"""The training loop: one optimiser step at a time, from a checkpoint if there is one.

Recipe, samples and step number determine a step, so a resumed run ends in the same weights, bit
for bit. Must not know plans, run folders or evaluation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.errors import DFlashError
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.checkpoint import (
    ArrayTree,
    TrainingCheckpoint,
    TrainingCounts,
    load_checkpoint,
    save_checkpoint,
)
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.loss import Objective, TrainingExample, accepted_by_position
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.model.forward import (
    TrainingHead,
    draw_blocks,
    full_head,
    occurring_ids,
    reduced_head,
)

_MAX_SKIPPED = 20
"""Samples in a row without a finite gradient after which the run ends: five steps of the default
recipe. A single bad sample recovers within one."""


@dataclass(frozen=True)
class StepReport:
    """The outcome of one step: the mean loss of its samples and the acceptance of its blocks.

    `accepted` [B - 1] is the share of the step's blocks accepted up to each position.
    `gradient_norm` is taken before clipping.
    """

    counts: TrainingCounts
    steps: int
    loss: float
    accepted: tuple[float, ...]
    learning_rate: float
    gradient_norm: float

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round over the step's uniform anchors, which is more than in decoding."""
        return 1 + sum(self.accepted)


AfterStep = Literal["continue", "save", "stop"]
"""Continue, continue after saving a checkpoint, or stop after saving one."""

OnStep = Callable[[StepReport], AfterStep]


def train(
    draft: BoundDraft,
    samples: Sequence[Sample],
    features: FeatureStore,
    recipe: Recipe,
    checkpoint: Path,
    on_step: OnStep,
    dtype: mx.Dtype = mx.float32,
) -> TrainingCounts:
    """Train the draft's model in place, from the file `checkpoint` if it exists.

    The file is written when `on_step` asks for it, and at the end. Weights are float32; the
    forward computes in `dtype`.

    Raises:
        DFlashError: the checkpoint cannot be written, or the loss stays NaN.
    """
    run = _Run(draft, samples, features, recipe, dtype)
    run.restore(load_checkpoint(checkpoint))
    while run.counts.step < recipe.steps:
        after = on_step(run.step())
        if after != "continue":
            save_checkpoint(checkpoint, run.checkpoint())
        if after == "stop":
            return run.counts
    save_checkpoint(checkpoint, run.checkpoint())
    return run.counts


def make_optimizer(recipe: Recipe) -> optim.AdamW:
    """Return AdamW with linear warm-up and cosine decay of the learning rate."""
    rise = max(1, round(recipe.steps * recipe.warmup))
    peak, end = recipe.learning_rate, recipe.learning_rate * recipe.final_rate
    fall = optim.cosine_decay(peak, max(1, recipe.steps - rise), end)
    rate = optim.join_schedules([optim.linear_schedule(peak / rise, peak, rise), fall], [rise])
    return optim.AdamW(rate, weight_decay=recipe.weight_decay, bias_correction=True)


class _Run:
    """Weights, optimiser state and counts between steps."""

    def __init__(
        self,
        draft: BoundDraft,
        samples: Sequence[Sample],
        features: FeatureStore,
        recipe: Recipe,
        dtype: mx.Dtype,
    ) -> None:
        self.draft, self.samples, self.features = draft, samples, features
        self.recipe, self.dtype = recipe, dtype
        self.counts = TrainingCounts()
        freeze_shared(draft)
        self.weights: ArrayTree = tree_map(
            lambda array: array.astype(mx.float32), draft.model.trainable_parameters()
        )
        self.optimizer = make_optimizer(recipe)
        self.optimizer.init(self.weights)
        self._heads: dict[bool, TrainingHead] = {}
        self._failures = 0
        self._epoch, self._order = -1, np.zeros(0, int)

    def restore(self, checkpoint: TrainingCheckpoint | None) -> None:
        """Continue from `checkpoint`."""
        if checkpoint is None:
            return
        expected = (_signature(self.weights), _signature(self.optimizer.state))
        if (_signature(checkpoint.weights), _signature(checkpoint.optimizer)) != expected:
            raise DFlashError(
                "checkpoint.safetensors in the run folder belongs to another draft; give the same "
                "options as before, or start again with --force"
            )
        self.counts = checkpoint.counts
        # keep the order of this run's trees: the gradient norm sums over them in that order
        self.weights = tree_map(lambda _, read: read, self.weights, checkpoint.weights)
        self.optimizer.state = tree_map(
            lambda _, read: read, self.optimizer.state, checkpoint.optimizer
        )
        self._use_weights()

    def checkpoint(self) -> TrainingCheckpoint:
        """Return the current state."""
        return TrainingCheckpoint(self.counts, self.weights, self.optimizer.state)

    def step(self) -> StepReport:
        """Take one optimiser step."""
        objective = self._objective()
        gradient = mx.value_and_grad(objective)
        total: ArrayTree | None = None
        losses, right, n_tokens, skipped = [], [], 0, 0
        for example in self._examples():
            (loss, positions), grads = gradient(self.weights, example)
            norm = _norm(grads)
            mx.eval(loss, positions, grads, norm)
            if not np.isfinite(norm.item()) or not np.isfinite(loss.item()):
                skipped += 1
                continue
            total = grads if total is None else tree_map(mx.add, total, grads)
            mx.eval(total)
            value: Any = loss.item()
            losses.append(float(value))
            right.append(np.array(positions))
            n_tokens += int(example.blocks.known.sum())
        self.counts = replace(
            self.counts,
            step=self.counts.step + 1,
            tokens=self.counts.tokens + n_tokens,
            skipped=self.counts.skipped + skipped,
        )
        rate = float(self.optimizer.learning_rate.item())
        norm_before = self._update(total, len(losses))
        return self._report(losses, right, rate, norm_before)

    def _update(self, total: ArrayTree | None, count: int) -> float:
        """Update the weights by the mean of `count` gradients; return its norm."""
        if total is None:
            self._count_failure()
            self._use_weights()
            return float("nan")
        self._failures = 0
        mean = tree_map(lambda array: array / count, total)
        clipped, norm = optim.clip_grad_norm(mean, self.recipe.max_grad_norm)
        self.weights = self.optimizer.apply_gradients(clipped, self.weights)
        self._use_weights()
        return float(norm.item())

    def _count_failure(self) -> None:
        """Count a step without a finite gradient; end the run after too many in a row."""
        self._failures += self.recipe.samples_per_step
        if self._failures >= _MAX_SKIPPED:
            raise DFlashError(
                f"the loss has been NaN for {self._failures} samples in a row at step "
                f"{self.counts.step}; the last checkpoint is not affected; start again with a "
                "lower --learning-rate, or check the target's weights for NaN"
            )

    def _use_weights(self) -> None:
        """Evaluate the weights and copy them into the model in the dtype of the forward."""
        mx.eval(self.weights, self.optimizer.state)
        cast = tree_map(lambda array: array.astype(self.dtype), self.weights)
        self.draft.model.update(cast)

    def _examples(self) -> "list[TrainingExample]":
        size, block_size = self.recipe.samples_per_step, self.draft.block_size
        made = []
        for index in range(self.counts.step * size, (self.counts.step + 1) * size):
            sample = self._sample_at(index)
            tokens, first = sample.tokens, sample.first
            rng = np.random.default_rng([self.recipe.seed, 1, index])
            blocks = draw_blocks(tokens, first, block_size, self.recipe.anchors, rng)
            made.append(TrainingExample(tokens, first, blocks, self.features(sample)))
        return made

    def _sample_at(self, index: int) -> Sample:
        """Return sample `index`, counted over all epochs; each epoch has its own order."""
        epoch, within = divmod(index, len(self.samples))
        if epoch != self._epoch:
            rng = np.random.default_rng([self.recipe.seed, 0, epoch])
            self._epoch, self._order = epoch, rng.permutation(len(self.samples))
        return self.samples[int(self._order[within])]

    def _objective(self) -> Objective:
        reduced = self.counts.step < self.recipe.reduced_head_steps
        if reduced not in self._heads:
            self._heads.clear()
            self._heads[reduced] = self._make_head(reduced)
        return Objective(self.draft, self._heads[reduced], self.recipe, self.dtype)

    def _make_head(self, reduced: bool) -> TrainingHead:
        if not reduced:
            return full_head(self.draft)
        vocab_size = self.draft.target.shape.vocab_size
        answers = (np.array(sample.answer) for sample in self.samples)
        return reduced_head(self.draft, occurring_ids(answers, vocab_size), self.dtype)

    def _report(
        self, losses: list[float], right: list[np.ndarray], rate: float, norm: float
    ) -> StepReport:
        none = [np.zeros((1, self.draft.block_size - 1))]
        accepted = accepted_by_position(np.concatenate(right or none))
        return StepReport(
            counts=self.counts,
            steps=self.recipe.steps,
            loss=float(np.mean(losses)) if losses else float("nan"),
            accepted=tuple(accepted.tolist()),
            learning_rate=rate,
            gradient_norm=norm,
        )


def freeze_shared(draft: BoundDraft) -> None:
    """Freeze the embedding, the head and the vocabulary map; all other weights are trained."""
    model = draft.model
    model.unfreeze()
    for name in ("embed_tokens", "lm_head"):
        if name in model:
            model[name].freeze()
    if "d2t" in model:
        model.freeze(recurse=False, keys="d2t")


def _norm(grads: ArrayTree) -> mx.array:
    flat: Any = tree_flatten(grads)
    return mx.sqrt(sum((array.astype(mx.float32) ** 2).sum() for _, array in flat))


def _signature(tree: ArrayTree) -> dict[str, tuple[tuple[int, ...], mx.Dtype]]:
    """Return the shape and dtype of every array by name."""
    flat: Any = tree_flatten(tree)
    return {name: (array.shape, array.dtype) for name, array in flat}
