"""Merges the splits of an attention over keys. Kernel: attention_merge.metal.

Shapes: S splits, H query heads, M rows, D elements per head. A part holds D unfinished sums,
the top score in base 2 and the sum of weights.
"""

from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, read_kernel
from dflash_mlx.metal.refusal import first_reason, rank_refusal, refuse, size_refusal

KERNEL: Final = read_kernel("attention_merge", ("parts",), ("out",))


def attention_merge_reference(parts: mx.array, dtype: mx.Dtype) -> mx.array:
    """Return the finished rows [1, H, M, D] in `dtype` of parts [S, H, M, D + 2]."""
    top = parts[..., -2:-1]
    weight = mx.power(2.0, top - top.max(axis=0))
    total = (parts[..., -1:] * weight).sum(axis=0)
    return ((parts[..., :-2] * weight).sum(axis=0) / total).astype(dtype)[None]


def attention_merge_refusal(parts: mx.array) -> str | None:
    """Return why the kernel does not support `parts`, or None."""
    return first_reason(
        (
            rank_refusal("parts", parts, "S H M D+2"),
            None if parts.dtype == mx.float32 else f"parts are {parts.dtype}; float32 is needed",
            size_refusal("parts", parts),
        )
    )


def attention_merge(
    parts: mx.array, dtype: mx.Dtype, *, device: Device | None = DEFAULT_DEVICE
) -> mx.array:
    """Return the finished rows [1, H, M, D] in `dtype` of parts [S, H, M, D + 2].

    Raises:
        BadRequest: the kernel does not support `parts`.
    """
    refuse("attention_merge", attention_merge_refusal(parts))
    if device is None:
        return attention_merge_reference(parts, dtype)
    _, heads, rows, width = parts.shape
    launch = Launch(
        kernel=KERNEL,
        inputs=(parts,),
        template=(("O", dtype), ("D", width - 2)),
        grid=(32, heads * rows, 1),
        threadgroup=(32, 1, 1),
        output_shapes=((1, heads, rows, width - 2),),
        output_dtypes=(dtype,),
    )
    (out,) = device.run(launch)
    return out
