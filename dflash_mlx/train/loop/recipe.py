"""The training recipe: hyperparameters that, with the samples, determine every step.

Must not know the samples or the machine.
"""

from dataclasses import dataclass
from typing import Literal

from dflash_mlx.errors import BadRequest

Weighting = Literal["fixed", "d-pace"]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a run. Defaults: arXiv 2602.06036, appendix A.1, where it names them.

    Args:
        steps: optimiser steps.
        samples_per_step: samples whose gradients a step averages.
        anchors: blocks per sample, at most; new anchors are drawn in every epoch.
        learning_rate: peak, reached after the warm-up.
        final_rate: learning rate at the end of the cosine, as a share of the peak.
        warmup: share of the steps with a rising learning rate.
        weight_decay: of AdamW.
        max_grad_norm: bound that the gradient is clipped to.
        weighting: "fixed" weights position k of a block by exp(-(k - 1) / `position_decay`);
            "d-pace" by its contribution to the expected accepted length.
        smoothing: of the acceptance probabilities in "d-pace".
        distillation: share of the loss against the target's distribution; the rest is cross
            entropy against the target's token.
        teacher_top_k: most likely tokens of the target's distribution that are stored.
        reduced_head_share: share of the steps, from the first, with a head over the tokens that
            occur in the answers; the last steps use the full head.
        selector_weight: weight of the selector's loss (DFlash 2).
        checkpointing: gradient checkpointing: less memory, more time.
        seed: of sample order and anchors.
    """

    steps: int
    samples_per_step: int = 4
    anchors: int = 64
    learning_rate: float = 6e-4
    final_rate: float = 0.05
    warmup: float = 0.04
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    weighting: Weighting = "fixed"
    position_decay: float = 4.0
    smoothing: float = 0.5
    distillation: float = 0.5
    teacher_top_k: int = 32
    reduced_head_share: float = 0.9
    selector_weight: float = 0.1
    checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "samples_per_step", "anchors", "teacher_top_k"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs 1 or more")
        for name in ("learning_rate", "position_decay", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs more than 0")
        for name in ("warmup", "final_rate", "distillation", "reduced_head_share", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs 0 to 1")

    @property
    def reduced_head_steps(self) -> int:
        """Number of steps with the reduced head."""
        return int(self.steps * self.reduced_head_share)


def position_decay_for(block_size: int) -> float:
    """Return the position decay for a block size.

    The paper uses 4, 5 and 7 for block sizes 8, 10 and 16; other sizes lie on the same line.
    """
    return max(1.0, 4 + (block_size - 8) * 3 / 8)
