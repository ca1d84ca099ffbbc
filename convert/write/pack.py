"""Rows of a source as rows of the output: cast, quantized, and checked for NaN and infinity."""

from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.convert.plan.weights import PlannedTensor
from dflash_mlx.convert.tensors import Carrier, from_mlx, is_finite, mlx_dtype, to_mlx
from dflash_mlx.errors import BadCheckpoint


def packed_rows(output: PlannedTensor, start: int, stop: int) -> list[Carrier]:
    """Return rows `start` to `stop` of every part of an output.

    Raises:
        BadCheckpoint: a value is NaN or infinite, or does not fit the type asked for.
    """
    values = output.rows.read(start, stop)
    if not is_finite(values, output.rows.dtype):
        raise BadCheckpoint(
            f"{output.name} holds NaN or infinity between rows {start} and {stop}; the checkpoint "
            "is damaged, fetch it again or ask its author"
        )
    if output.quantization is None and output.dtype == output.rows.dtype:
        return [values]
    array = to_mlx(values, output.rows.dtype).astype(mlx_dtype(output.dtype))
    arrays: Sequence[mx.array] = (array,)
    if output.quantization:
        arrays = mx.quantize(array, **output.quantization.settings())
    parts = [from_mlx(part) for part in arrays]
    for part, made in zip(output.parts, parts, strict=True):
        if not is_finite(made, part.dtype):
            raise BadCheckpoint(
                f"{output.name} has values too large for {part.dtype}; take --dtype bfloat16"
            )
    return parts
