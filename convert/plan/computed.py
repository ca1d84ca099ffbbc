"""One output of a rule, computed as a whole tensor because its rows are not rows of the source."""

import threading
from collections.abc import Callable, Mapping

import mlx.core as mx

from dflash_mlx.convert.tensors import (
    Carrier,
    Rows,
    from_mlx,
    mlx_dtype,
    n_bytes,
    read_all,
    row_count,
    row_width,
)

Rule = Callable[[dict[str, mx.array]], Mapping[str, mx.array]]
"""A function from a checkpoint's tensors to the model's tensors, such as mlx-lm's `sanitize`."""


class ComputedRows:
    """The output `name` of `rule` over `tensors`; it depends on the tensors `needed`.

    The value stays in memory from the first read until its last row is returned, so that reading
    in order computes it once. The other inputs of the rule are zeros that MLX never evaluates.
    """

    def __init__(
        self,
        rule: Rule,
        tensors: Mapping[str, Rows],
        needed: frozenset[str],
        name: str,
        dtype: str,
        shape: tuple[int, ...],
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self._rule = rule
        self._tensors = tensors
        self._needed = needed
        self._name = name
        self._lock = threading.Lock()
        self._value: Carrier | None = None
        self._rows_left = 0

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        with self._lock:
            if self._value is None:
                self._value = self._computed()
                self._rows_left = row_count(self.shape)
            wanted = self._value[start:stop]
            self._rows_left -= stop - start
            if self._rows_left <= 0:
                self._value = None
        return wanted

    @property
    def inputs(self) -> list[Rows]:
        """The tensors that the value depends on."""
        return [self._tensors[name] for name in sorted(self._needed)]

    @property
    def peak_bytes(self) -> int:
        """Bytes in memory while the value is computed: inputs and output, each in two copies."""
        inputs = sum(n_bytes(rows.dtype, rows.shape) for rows in self.inputs)
        return 2 * inputs + 2 * n_bytes(self.dtype, self.shape)

    def _computed(self) -> Carrier:
        inputs = {
            name: read_all(rows)
            if name in self._needed
            else mx.zeros(rows.shape, mlx_dtype(rows.dtype))
            for name, rows in self._tensors.items()
        }
        made = self._rule(inputs)[self._name]
        return from_mlx(made.reshape(-1, row_width(self.shape)))
