"""When a draft is measured while it is trained, and what is kept of it."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dflash_mlx.models.pair import Pair
from dflash_mlx.train.evaluate import by_anchors, sequentially
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.planning import MEASURED_TOKENS
from dflash_mlx.train.predict import predictor
from dflash_mlx.train.preparing import Prepared
from dflash_mlx.train.samples import Samples

_ANCHORS = 32
"""Anchors drawn from each held-out answer."""

_MOST_HELD = 64
"""Held-out samples measured with by anchors."""


@dataclass(frozen=True)
class Measuring:
    """Decodes `per_kind` prompts of each kind every `every` steps, and draws anchors in `held`."""

    prepared: Prepared
    features: FeatureStore
    held: Samples
    every: int
    per_kind: int

    def due(self, step: int, steps: int) -> bool:
        """Whether to measure behind `step`; behind the last one always."""
        return step == steps or step % self.every == 0

    def measure(self, keep_on: Callable[[], bool]) -> dict[str, Any] | None:
        """Return both measurements as plain values; None when `keep_on` stopped them."""
        opened, draft = self.prepared.opened, self.prepared.beginning.draft
        found = sequentially(
            Pair(opened.loaded.target, draft),
            self.prepared.prompts_of(self.per_kind),
            opened.loaded.tokenizer.eos_token_ids,
            MEASURED_TOKENS,
            draft.block_size,
            keep_on,
        )
        if found is None:
            return None
        anchors = by_anchors(
            predictor(draft, self.features, opened.dtype),
            self.held[:_MOST_HELD],
            draft.block_size,
            _ANCHORS,
            self.prepared.config.seed,
        )
        return {"sequential": asdict(found), "anchors": asdict(anchors)}


def interval(steps: int, times: int) -> int:
    """Return the steps between measurements so that there are `times`, the last at the end."""
    return max(1, math.ceil(steps / times))
