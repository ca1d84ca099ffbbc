"""Attention of a draft block over its context and itself; each key is read once per KV head.

Shapes: H query heads, G KV heads, B block rows, C context rows, D elements per head. Kernel:
block_attention.metal, then attention_merge.metal where the keys are split.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.attention_geometry import AttentionGeometry, attention_geometries
from dflash_mlx.metal.attention_merge import attention_merge
from dflash_mlx.metal.build import (
    DEFAULT_DEVICE,
    Device,
    Launch,
    LaunchPlan,
    read_kernel,
    scalar,
)
from dflash_mlx.metal.refusal import first_reason, refuse
from dflash_mlx.metal.verify_attention import attend_in_float32, attention_reasons

MAX_ROWS: Final = 32

KERNEL: Final = read_kernel(
    "block_attention",
    ("q", "context_k", "context_v", "block_k", "block_v", "scale"),
    ("out",),
    contiguous=False,
)


@dataclass(frozen=True)
class BlockKeys:
    """Keys and values of the context [1, G, C, D] and of the block itself [1, G, B, D]."""

    context_k: mx.array
    context_v: mx.array
    block_k: mx.array
    block_v: mx.array


@dataclass(frozen=True)
class BlockMask:
    """`window` hides context rows at that distance or more, `causal` later rows of the block."""

    window: int | None = None
    causal: bool = False


def block_attention_reference(
    q: mx.array, keys: BlockKeys, scale: float, mask: BlockMask
) -> mx.array:
    """Return the attention [1, H, B, D] of block rows in q's dtype, computed in float32.

    The context rows are at positions 0 to C - 1, block row i at position C + i.
    """
    context, rows = keys.context_k.shape[2], q.shape[2]
    position = mx.arange(context, context + rows)[:, None]
    key = mx.arange(context + rows)[None]
    visible = key <= position if mask.causal else mx.full((rows, context + rows), True)
    if mask.window is not None:
        visible = visible & ((key > position - mask.window) | (key >= context))
    k = mx.concatenate([keys.context_k, keys.block_k], axis=2)
    v = mx.concatenate([keys.context_v, keys.block_v], axis=2)
    return attend_in_float32(q, k, v, scale, visible)


def block_attention_refusal(q: mx.array, keys: BlockKeys, mask: BlockMask) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(q, keys, mask))


def block_attention(
    q: mx.array,
    keys: BlockKeys,
    scale: float,
    mask: BlockMask,
    *,
    device: Device | None = DEFAULT_DEVICE,
    geometry: AttentionGeometry | None = None,
) -> mx.array:
    """Return the attention [1, H, B, D] of the block rows q [1, H, B, D], in q's dtype.

    The context rows are at positions 0 to C - 1, block row i at position C + i. Raises
    BadRequest for inputs that the kernel does not support.
    """
    refuse("block_attention", block_attention_refusal(q, keys, mask))
    if device is None:
        return block_attention_reference(q, keys, scale, mask)
    groups, context = keys.context_k.shape[1], keys.context_k.shape[2]
    shape = (q.shape[3], q.dtype, q.shape[2] * q.shape[1] // groups, groups, context)
    chosen = geometry or attention_geometries(*shape)[0]
    return launch_block(q, keys, scale, mask, device=device, geometry=chosen)


def launch_block(
    q: mx.array,
    keys: BlockKeys,
    scale: float,
    mask: BlockMask,
    *,
    device: Device,
    geometry: AttentionGeometry,
) -> mx.array:
    """Return `block_attention` of supported inputs, without checking them."""
    _, heads, rows, size = q.shape
    plan = _plan(q.dtype, heads, keys.context_k.shape[1], rows, size, mask, geometry)
    arrays = (keys.context_k, keys.context_v, keys.block_k, keys.block_v)
    (out,) = device.run(Launch(KERNEL, (q, *arrays, scalar(scale)), *plan))
    return out if geometry.splits == 1 else attention_merge(out, q.dtype, device=device)


@cache
def _plan(
    dtype: mx.Dtype,
    heads: int,
    groups: int,
    rows: int,
    size: int,
    mask: BlockMask,
    geometry: AttentionGeometry,
) -> LaunchPlan:
    splits, threads = geometry.splits, 32 * geometry.simdgroups
    return LaunchPlan(
        template=(
            ("T", dtype),
            ("O", dtype if splits == 1 else mx.float32),
            ("D", size),
            ("KEYS", geometry.key_block),
            ("RT", geometry.row_tiles),
            ("SIMDS", geometry.simdgroups),
            ("HALVES", geometry.halves),
            ("WINDOW", mask.window or 0),
            ("CAUSAL", mask.causal),
            ("DIRECT", splits == 1),
        ),
        grid=(threads, groups * geometry.row_blocks(rows * heads // groups), splits),
        threadgroup=(threads, 1, 1),
        output_shapes=((1, heads, rows, size) if splits == 1 else (splits, heads, rows, size + 2),),
        output_dtypes=(dtype if splits == 1 else mx.float32,),
    )


def _reasons(q: mx.array, keys: BlockKeys, mask: BlockMask) -> Iterator[str | None]:
    yield from attention_reasons(q, keys.context_k, keys.context_v)
    yield from attention_reasons(q, keys.block_k, keys.block_v)
    rows, context = q.shape[2], keys.context_k.shape[2]
    if not 2 <= rows <= MAX_ROWS:
        yield f"q has {rows} rows; 2 to {MAX_ROWS} are needed"
    if keys.block_k.shape[2] != rows:
        yield f"block_k has {keys.block_k.shape[2]} rows and q {rows}; equal numbers are needed"
    if keys.context_k.shape[1] != keys.block_k.shape[1]:
        yield (
            f"{keys.context_k.shape[1]} KV heads in the context and "
            f"{keys.block_k.shape[1]} in the block; equal numbers are needed"
        )
    if context < 1:
        yield "the context has no rows; 1 or more are needed"
    if mask.window is not None and mask.window < rows:
        yield f"window is {mask.window} for {rows} rows; {rows} or more, or None, is needed"
