"""Tensors that are read by row range, the interface between all steps of a conversion.

Quantization works inside rows, so a conversion holds only row ranges in memory. Dtypes have the
names of the safetensors format. A tensor without leading axes is a single row.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

Carrier = np.ndarray[Any, np.dtype[Any]]
"""Rows [n, width] as a NumPy array of the same bits; bfloat16 is uint16, for NumPy lacks it."""

_CARRIERS: dict[str, type[np.generic]] = {
    **{"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8},
    "F8_E8M0": np.uint8,
    **{"U16": np.uint16, "I16": np.int16, "F16": np.float16, "BF16": np.uint16},
    **{"U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64},
}
_MLX: dict[str, mx.Dtype] = {
    **{"BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "F8_E4M3": mx.uint8, "F8_E5M2": mx.uint8},
    "F8_E8M0": mx.uint8,
    **{"U16": mx.uint16, "I16": mx.int16, "F16": mx.float16, "BF16": mx.bfloat16},
    **{"U32": mx.uint32, "I32": mx.int32, "F32": mx.float32, "U64": mx.uint64, "I64": mx.int64},
}
_EXPONENTS = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
"""The exponent bits; all of them are set in NaN and infinity."""

FLOATS = ("F32", "F16", "BF16")
FLOAT_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
CHUNK_BYTES = 8 << 20
"""Source bytes of one row range: 8 MiB, enough for full disk throughput, with ten of them in
memory at a time."""


class Rows(Protocol):
    """A tensor that is read by row range."""

    @property
    def dtype(self) -> str:
        """Safetensors name of the element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as MLX will see it."""

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop` as an array [stop - start, width]."""


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element."""
    return np.dtype(_CARRIERS[dtype]).itemsize


def row_count(shape: Sequence[int]) -> int:
    """Return the number of rows of a tensor of this shape."""
    return math.prod(shape[:-1])


def row_width(shape: Sequence[int]) -> int:
    """Return the number of elements of one row."""
    return shape[-1] if shape else 1


def n_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * item_bytes(dtype)


def chunks(rows: Rows, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield row ranges (start, stop) that cover the tensor, each of about `chunk_bytes` bytes."""
    total = row_count(rows.shape)
    step = max(1, chunk_bytes // max(1, row_width(rows.shape) * item_bytes(rows.dtype)))
    for start in range(0, total, step):
        yield start, min(total, start + step)


def from_bytes(raw: bytes, dtype: str, width: int) -> Carrier:
    """Return the carrier [n, width] of little-endian bytes."""
    carrier = np.dtype(_CARRIERS[dtype]).newbyteorder("<")
    return np.frombuffer(raw, carrier).reshape(-1, width)


def to_mlx(values: Carrier, dtype: str) -> mx.array:
    """Return the MLX array with the values of a carrier."""
    array = mx.array(values)
    return array.view(mx.bfloat16) if dtype == "BF16" else array


def from_mlx(array: mx.array) -> Carrier:
    """Evaluate an MLX array and return its carrier; both share their memory."""
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    mx.eval(array)  # releases the GIL, which NumPy's conversion does not
    carrier: Carrier = np.asarray(array)
    return carrier


def mlx_dtype(dtype: str) -> mx.Dtype:
    """Return the MLX dtype of a safetensors name."""
    return _MLX[dtype]


def dtype_name(dtype: mx.Dtype) -> str:
    """Return the safetensors name of an MLX dtype."""
    return next(name for name, known in _MLX.items() if known == dtype)


def is_finite(values: Carrier, dtype: str) -> bool:
    """Return whether no element is NaN or infinite; integers always are finite."""
    if dtype not in _EXPONENTS or not values.size:
        return True
    # read as integers, NaN and infinity are the largest of either sign; this needs no copy
    special = _EXPONENTS[dtype]
    signed, unsigned = (np.int16, np.uint16) if item_bytes(dtype) == 2 else (np.int32, np.uint32)
    sign = 1 << (8 * item_bytes(dtype) - 1)
    positive, negative = int(values.view(signed).max()), int(values.view(unsigned).max())
    return positive < special and negative < sign + special


def numbers(scalars: Sequence[mx.array]) -> list[float]:
    """Evaluate scalars together and return their values."""
    return [float(value) for value in np.array(mx.stack(list(scalars)).astype(mx.float32))]


def read_all(rows: Rows) -> mx.array:
    """Return the whole tensor. Use it for small tensors only."""
    values = rows.read(0, row_count(rows.shape))
    return to_mlx(values, rows.dtype).reshape(rows.shape)


@dataclass(frozen=True)
class Run:
    """`count` rows of `rows`: every `step`-th, from `start` on."""

    rows: Rows
    start: int
    count: int
    step: int = 1

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop` of the run."""
        first = self.start + start * self.step
        last = self.start + (stop - 1) * self.step + 1
        values = self.rows.read(first, last)
        return values if self.step == 1 else values[:: self.step]


@dataclass(frozen=True)
class JoinedRows:
    """A tensor that consists of runs of other tensors' rows."""

    runs: tuple[Run, ...]
    dtype: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        pieces = []
        before = 0
        for run in self.runs:
            first, last = max(start - before, 0), min(stop - before, run.count)
            if first < last:
                pieces.append(run.read(first, last))
            before += run.count
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else self.runs[0].read(0, 1)[:0]


@dataclass(frozen=True)
class RegroupedRows:
    """The bytes of a tensor as rows of another length or element type."""

    rows: Rows
    dtype: str
    shape: tuple[int, ...]

    def inner_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the inner rows that hold rows `start` to `stop`."""
        ours = row_width(self.shape) * item_bytes(self.dtype)
        theirs = row_width(self.rows.shape) * item_bytes(self.rows.dtype)
        return start * ours // theirs, -(-stop * ours // theirs)

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        ours = row_width(self.shape) * item_bytes(self.dtype)
        theirs = row_width(self.rows.shape) * item_bytes(self.rows.dtype)
        first, last = self.inner_range(start, stop)
        raw = np.ascontiguousarray(self.rows.read(first, last)).reshape(-1).view(np.uint8)
        skipped = start * ours - first * theirs
        wanted = raw[skipped : skipped + (stop - start) * ours]
        return wanted.view(_CARRIERS[self.dtype]).reshape(stop - start, -1)
