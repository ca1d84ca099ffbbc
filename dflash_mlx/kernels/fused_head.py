"""A language-model head that knows its best tokens without logits, where that was chosen."""

from dataclasses import dataclass, field, replace
from typing import Final

import mlx.core as mx

from dflash_mlx.kernels.choices import Choices
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.head_argmax import Head, head_argmax
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.metal.matrix_cases import weight_shape

N_BEST: Final = 2
"""The best token, and the next best, against which confidence is told."""


@dataclass(frozen=True)
class FusedHead:
    """A head with its choices by rows; called with hidden rows it answers, or leaves it."""

    head: Head
    device: Device
    choices: Choices[MatrixGeometry] = field(default_factory=Choices)

    def __call__(self, hidden: mx.array) -> BestTokens | None:
        """The `N_BEST` tokens of each row of `hidden` [1, n, K]; None where logits are wanted."""
        geometry = self.choices.at(hidden.shape[1])
        if geometry is None:
            return None
        found = head_argmax(hidden[0], self.head, N_BEST, device=self.device, geometry=geometry)
        # a row without a finite logit has no best token; any will do, its sum says that it is none
        n_tokens, _ = weight_shape(self.head.weight)
        return replace(found, tokens=mx.clip(found.tokens, 0, n_tokens - 1))
