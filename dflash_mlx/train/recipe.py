"""How a draft is trained: one frozen object that, with the samples, decides every step."""

from dataclasses import dataclass
from typing import Literal

from dflash_mlx.errors import BadRequest

Weighting = Literal["fixed", "d-pace"]


@dataclass(frozen=True)
class Recipe:
    """Lengths are counts, rates are per step. Defaults: arXiv 2602.06036, appendix A.1.

    Each step sums the gradients of `sequences` samples with up to `anchors` blocks each, drawn
    anew every time a sample comes round. The learning rate rises over the first `warmup` of all
    steps and falls as a cosine to `final_rate` of its peak. Rows of a block weigh
    exp(-(k - 1) / `decay`) at slot k where `weighting` is fixed, or what they add to the expected
    accepted length where it is "d-pace", smoothed by `smoothing`. `distillation` is the share of
    the loss taken against the target's own distribution, of which the `teacher_ids` likeliest
    are kept, rather than against the token that came. Until `narrow` of all steps the head is
    restricted to tokens that occur in the answers. `checkpointing` trades time for memory.
    """

    steps: int
    sequences: int = 4
    anchors: int = 64
    learning_rate: float = 6e-4
    final_rate: float = 0.05
    warmup: float = 0.04
    weight_decay: float = 0.01
    clip: float = 1.0
    weighting: Weighting = "fixed"
    decay: float = 4.0
    smoothing: float = 0.5
    distillation: float = 0.5
    teacher_ids: int = 32
    narrow: float = 0.9
    selector: float = 0.1
    checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "sequences", "anchors", "teacher_ids"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs 1 or more")
        for name in ("learning_rate", "decay", "clip"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs more than 0")
        for name in ("warmup", "final_rate", "distillation", "narrow", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it needs 0 to 1")

    @property
    def narrow_steps(self) -> int:
        """Steps with the restricted head; the full one comes last."""
        return int(self.steps * self.narrow)


def decay_for(block_size: int) -> float:
    """Return the decay, in rows, that the paper takes for blocks of `block_size` rows.

    It names 4, 5 and 7 for 8, 10 and 16; other sizes lie between or beyond on the same line.
    """
    return max(1.0, 4 + (block_size - 8) * 3 / 8)
