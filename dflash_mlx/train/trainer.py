"""The training loop: samples in, a better draft out, one optimiser step at a time.

A step is decided by the recipe, the samples and its own number alone, so a run that was stopped
and resumed ends in the same weights, bit for bit. Weights are trained in float32 and cast to
what the device computes in.
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
from dflash_mlx.train.anchors import draw_blocks
from dflash_mlx.train.checkpoint import (
    Checkpoint,
    Counts,
    Tree,
    load_checkpoint,
    save_checkpoint,
)
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.head import Head, narrow_head, occurring, whole_head
from dflash_mlx.train.loss import accepted_by_slot
from dflash_mlx.train.objective import Example, Objective
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Sample

_PATIENCE = 20
"""Samples in a row that may give no finite gradient before the run is given up."""


@dataclass(frozen=True)
class Progress:
    """One step that was taken: the mean loss of its samples and what its blocks got right."""

    counts: Counts
    steps: int
    loss: float
    accepted: tuple[float, ...]
    """Share of the step's blocks accepted up to each slot, [B - 1]."""
    learning_rate: float
    gradient: float
    """Norm of the gradient before it was clipped."""

    @property
    def tokens_per_round(self) -> float:
        """Over the step's anchors, which are uniform: decoding stands longer at hard places."""
        return 1 + sum(self.accepted)


Word = Literal["on", "save", "stop"]
"""Go on, go on after saving a checkpoint, or stop after saving one."""

Watch = Callable[[Progress], Word]


def train(
    draft: BoundDraft,
    samples: Sequence[Sample],
    features: FeatureStore,
    recipe: Recipe,
    checkpoint: Path,
    watch: Watch,
    dtype: mx.Dtype = mx.float32,
) -> Counts:
    """Train `draft`'s model in place on `samples`, from `checkpoint` if there is one.

    The file is written when `watch` asks, and at the end.

    Raises:
        DFlashError: the checkpoint could not be written, or the loss stays NaN.
    """
    run = _Run(draft, samples, features, recipe, dtype)
    run.restore(load_checkpoint(checkpoint))
    while run.counts.step < recipe.steps:
        word = watch(run.step())
        if word != "on":
            save_checkpoint(checkpoint, run.checkpoint())
        if word == "stop":
            return run.counts
    save_checkpoint(checkpoint, run.checkpoint())
    return run.counts


def make_optimizer(recipe: Recipe) -> optim.AdamW:
    """Return AdamW with a linear rise and a cosine fall of the learning rate."""
    rise = max(1, round(recipe.steps * recipe.warmup))
    peak, end = recipe.learning_rate, recipe.learning_rate * recipe.final_rate
    fall = optim.cosine_decay(peak, max(1, recipe.steps - rise), end)
    rate = optim.join_schedules([optim.linear_schedule(peak / rise, peak, rise), fall], [rise])
    return optim.AdamW(rate, weight_decay=recipe.weight_decay, bias_correction=True)


class _Run:
    """Weights, moments and counts between steps."""

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
        self.counts = Counts()
        freeze_borrowed(draft)
        self.weights: Tree = tree_map(
            lambda array: array.astype(mx.float32), draft.model.trainable_parameters()
        )
        self.optimizer = make_optimizer(recipe)
        self.optimizer.init(self.weights)
        self._heads: dict[bool, Head] = {}
        self._failures = 0
        self._epoch, self._order = -1, np.zeros(0, int)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Go on where `checkpoint` stands."""
        if checkpoint is None:
            return
        shapes = _shapes(self.weights)
        if _shapes(checkpoint.weights) != shapes:
            raise DFlashError(
                "the checkpoint holds another draft than this run's; give the same options as "
                "before, or another folder with -o"
            )
        self.counts = checkpoint.counts
        # in the order of this run's trees: sums over them round by it
        self.weights = tree_map(lambda _, read: read, self.weights, checkpoint.weights)
        self.optimizer.state = tree_map(
            lambda _, read: read, self.optimizer.state, checkpoint.optimizer
        )
        self._settle()

    def checkpoint(self) -> Checkpoint:
        """Return where this run stands."""
        return Checkpoint(self.counts, self.weights, self.optimizer.state)

    def step(self) -> Progress:
        """Follow the gradient of one batch."""
        objective = self._objective()
        gradient = mx.value_and_grad(objective)
        total: Tree | None = None
        losses, right, n_tokens, failed = [], [], 0, 0
        for example in self._examples():
            (loss, slots), grads = gradient(self.weights, example)
            norm = _norm(grads)
            mx.eval(loss, slots, grads, norm)
            if not np.isfinite(norm.item()) or not np.isfinite(loss.item()):
                failed += 1
                continue
            total = grads if total is None else tree_map(mx.add, total, grads)
            mx.eval(total)
            value: Any = loss.item()
            losses.append(float(value))
            right.append(np.array(slots))
            n_tokens += int(example.blocks.known.sum())
        self.counts = replace(
            self.counts,
            step=self.counts.step + 1,
            tokens=self.counts.tokens + n_tokens,
            skipped=self.counts.skipped + failed,
        )
        rate = float(self.optimizer.learning_rate.item())
        norm_before = self._follow(total, len(losses))
        return self._progress(losses, right, rate, norm_before)

    def _follow(self, total: Tree | None, count: int) -> float:
        """Update the weights by the mean of `count` gradients; return its norm."""
        if total is None:
            self._give_up()
            self._settle()
            return float("nan")
        self._failures = 0
        mean = tree_map(lambda array: array / count, total)
        clipped, norm = optim.clip_grad_norm(mean, self.recipe.clip)
        self.weights = self.optimizer.apply_gradients(clipped, self.weights)
        self._settle()
        return float(norm.item())

    def _give_up(self) -> None:
        """Count a step without any finite gradient; too many in a row are no accident."""
        self._failures += self.recipe.sequences
        if self._failures >= _PATIENCE:
            raise DFlashError(
                f"the loss has been NaN for {self._failures} samples in a row at step "
                f"{self.counts.step}; the last checkpoint is good. Go on from it with a lower "
                "--learning-rate, or look for NaN in the target"
            )

    def _settle(self) -> None:
        """Evaluate the weights and put them into the model, as they will be used."""
        mx.eval(self.weights, self.optimizer.state)
        used = tree_map(lambda array: array.astype(self.dtype), self.weights)
        self.draft.model.update(used)

    def _examples(self) -> "list[Example]":
        size, block_size = self.recipe.sequences, self.draft.block_size
        made = []
        for place in range(self.counts.step * size, (self.counts.step + 1) * size):
            sample = self._sample_at(place)
            tokens, first = sample.tokens, sample.first
            rng = np.random.default_rng([self.recipe.seed, 1, place])
            blocks = draw_blocks(tokens, first, block_size, self.recipe.anchors, rng)
            made.append(Example(tokens, first, blocks, self.features(sample)))
        return made

    def _sample_at(self, place: int) -> Sample:
        """Return the sample at `place` of all epochs, each in an order of its own."""
        epoch, within = divmod(place, len(self.samples))
        if epoch != self._epoch:
            rng = np.random.default_rng([self.recipe.seed, 0, epoch])
            self._epoch, self._order = epoch, rng.permutation(len(self.samples))
        return self.samples[int(self._order[within])]

    def _objective(self) -> Objective:
        narrow = self.counts.step < self.recipe.narrow_steps
        if narrow not in self._heads:
            self._heads.clear()
            self._heads[narrow] = self._make_head(narrow)
        return Objective(self.draft, self._heads[narrow], self.recipe, self.dtype)

    def _make_head(self, narrow: bool) -> Head:
        if not narrow:
            return whole_head(self.draft)
        vocab_size = self.draft.target.shape.vocab_size
        answers = (np.array(sample.answer) for sample in self.samples)
        return narrow_head(self.draft, occurring(answers, vocab_size), self.dtype)

    def _progress(
        self, losses: list[float], right: list[np.ndarray], rate: float, norm: float
    ) -> Progress:
        nothing = [np.zeros((1, self.draft.block_size - 1))]
        accepted = accepted_by_slot(np.concatenate(right or nothing))
        return Progress(
            counts=self.counts,
            steps=self.recipe.steps,
            loss=float(np.mean(losses)) if losses else float("nan"),
            accepted=tuple(accepted.tolist()),
            learning_rate=rate,
            gradient=norm,
        )


def freeze_borrowed(draft: BoundDraft) -> None:
    """Freeze what belongs to the target or says which ids there are; train all else."""
    model = draft.model
    model.unfreeze()
    for name in ("embed_tokens", "lm_head"):
        if name in model:
            model[name].freeze()
    if "d2t" in model:
        model.freeze(recurse=False, keys="d2t")


def _norm(grads: Tree) -> mx.array:
    flat: Any = tree_flatten(grads)
    return mx.sqrt(sum((array.astype(mx.float32) ** 2).sum() for _, array in flat))


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    flat: Any = tree_flatten(tree)
    return {name: array.shape for name, array in flat}
