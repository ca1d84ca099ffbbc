"""A language-model head that returns the best tokens without writing logits."""

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
"""The best token and the runner-up, whose distance is the confidence."""


@dataclass(frozen=True)
class FusedHead:
    """A head with its kernel choices by number of rows.

    It lists the `count` best tokens of each row. `dtype` is the type of the hidden rows for which
    the choices hold.
    """

    head: Head
    count: int
    dtype: mx.Dtype
    device: Device
    choices: Choices[MatrixGeometry] = field(default_factory=Choices)

    def __call__(self, hidden: mx.array) -> BestTokens | None:
        """Return the best tokens of each row of `hidden` [1, n, K].

        Returns None where no kernel was selected; the caller then computes logits.
        """
        geometry = self.choices.at(hidden.shape[1])
        if geometry is None or hidden.dtype != self.dtype:
            return None
        found = head_argmax(hidden[0], self.head, self.count, device=self.device, geometry=geometry)
        # A row without a finite logit lists no token. The clip keeps the id inside the vocabulary;
        # the log-sum-exp of such a row is not finite, which stops the answer.
        n_tokens, _ = weight_shape(self.head.weight)
        return replace(found, tokens=mx.clip(found.tokens, 0, n_tokens - 1))
