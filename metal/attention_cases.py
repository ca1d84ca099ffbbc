"""Tuning cases of attention: a verified block over a cache, and a draft block over its context.

Shapes: L keys, C context rows.
"""

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.attention_geometry import AttentionGeometry, attention_geometries
from dflash_mlx.metal.block_attention import KERNEL as BLOCK
from dflash_mlx.metal.block_attention import (
    BlockKeys,
    BlockMask,
    block_attention,
    block_attention_reference,
)
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.matrix_cases import ACCUMULATION, ROUNDING, chain, dtype_name
from dflash_mlx.metal.tuning_case import TuningCase
from dflash_mlx.metal.verify_attention import KERNEL as VERIFY
from dflash_mlx.metal.verify_attention import verify_attention, verify_attention_reference

# Caches used in turn, as in a model: each layer has its own, so none stays in a GPU cache.
CACHES: Final = 4


@dataclass(frozen=True)
class HeadShape:
    """Query heads, KV heads, elements per head, and the element type."""

    heads: int
    groups: int
    size: int
    dtype: mx.Dtype

    def __str__(self) -> str:
        return f"{self.heads}/{self.groups} heads of {self.size} {dtype_name(self.dtype)}"


def verify_attention_case(
    shape: HeadShape, rows: int, keys: int, device: Device
) -> TuningCase[AttentionGeometry]:
    """Return the case of a verified block of `rows` rows over caches of `keys` keys."""
    scale = shape.size**-0.5
    q = _normal(0, shape, shape.heads, rows)
    arrays = [_normal(seed + 1, shape, shape.groups, keys) for seed in range(2 * CACHES)]
    caches = list(zip(arrays[::2], arrays[1::2], strict=True))

    def check(geometry: AttentionGeometry) -> str | None:
        for n_keys, window in ((keys, None), (keys - 3, None), (keys, keys // 3 + 1)):
            k, v = (array[:, :, :n_keys] for array in caches[0])
            out = verify_attention(q, k, v, scale, window=window, device=device, geometry=geometry)
            with mx.stream(mx.cpu):
                expected = verify_attention_reference(q.astype(mx.float32), k, v, scale, window)
            wrong = difference(out, expected)
            if wrong is not None:
                return f"{wrong} with {n_keys} keys"
        return None

    def stock(row: mx.array, step: int) -> mx.array:
        k, v = caches[step % CACHES]
        return mx.fast.scaled_dot_product_attention(row, k, v, scale=scale, mask="causal")

    return TuningCase(
        VERIFY.name,
        VERIFY.source_hash,
        f"{shape} x {rows} rows, {keys} keys",
        attention_geometries(shape.size, shape.dtype, rows * shape.heads // shape.groups),
        check,
        lambda geometry, steps: chain(
            q,
            steps,
            lambda row, step: verify_attention(
                row, *caches[step % CACHES], scale, device=device, geometry=geometry
            ),
        ),
        lambda steps: chain(q, steps, stock),
    )


def block_attention_case(
    shape: HeadShape, rows: int, context: int, mask: BlockMask, device: Device
) -> TuningCase[AttentionGeometry]:
    """Return the case of a draft block of `rows` rows over `context` rows.

    Stock MLX gets context and block already concatenated. The cost of concatenation is not
    timed, which favours stock MLX.
    """
    scale = shape.size**-0.5
    q = _normal(0, shape, shape.heads, rows)
    lengths = (context, context, rows, rows)
    sources = [
        BlockKeys(*(_normal(4 * i + j + 1, shape, shape.groups, n) for j, n in enumerate(lengths)))
        for i in range(CACHES)
    ]

    def check(geometry: AttentionGeometry) -> str | None:
        fewer = max(1, context - 3)
        keys = BlockKeys(
            sources[0].context_k[:, :, :fewer],
            sources[0].context_v[:, :, :fewer],
            sources[0].block_k,
            sources[0].block_v,
        )
        for source in (sources[0], keys):
            out = block_attention(q, source, scale, mask, device=device, geometry=geometry)
            with mx.stream(mx.cpu):
                expected = block_attention_reference(q.astype(mx.float32), source, scale, mask)
            wrong = difference(out, expected)
            if wrong is not None:
                return wrong
        return None

    joined = [
        (
            mx.concatenate([keys.context_k, keys.block_k], axis=2),
            mx.concatenate([keys.context_v, keys.block_v], axis=2),
        )
        for keys in sources
    ]
    array_mask = stock_mask(context, rows, mask)

    def stock(row: mx.array, step: int) -> mx.array:
        k, v = joined[step % CACHES]
        return mx.fast.scaled_dot_product_attention(row, k, v, scale=scale, mask=array_mask)

    return TuningCase(
        BLOCK.name,
        BLOCK.source_hash,
        f"{shape} x {rows} rows, {context} context rows, {mask}",
        attention_geometries(shape.size, shape.dtype, rows * shape.heads // shape.groups),
        check,
        lambda geometry, steps: chain(
            q,
            steps,
            lambda row, step: block_attention(
                row, sources[step % CACHES], scale, mask, device=device, geometry=geometry
            ),
        ),
        lambda steps: chain(q, steps, stock),
    )


def stock_mask(context: int, rows: int, mask: BlockMask) -> mx.array | None:
    """Return the mask array for stock MLX, or None where every key is visible."""
    if not mask.causal and (mask.window is None or context + rows <= mask.window):
        return None
    position = mx.arange(context, context + rows)[:, None]
    key = mx.arange(context + rows)[None]
    visible = key <= position if mask.causal else key >= 0
    if mask.window is not None:
        visible = visible & ((key > position - mask.window) | (key >= context))
    return visible


def difference(out: mx.array, expected: mx.array) -> str | None:
    """Return how `out` differs from `expected`, or None; compared on the CPU."""
    with mx.stream(mx.cpu):
        error = mx.abs(out.astype(mx.float32) - expected).max()
        largest = mx.abs(expected).max()
        if bool((error <= (ROUNDING[out.dtype] + ACCUMULATION) * largest).item()):
            return None
    return f"off by {error.item():.3g}, largest value {largest.item():.3g}"


def _normal(seed: int, shape: HeadShape, heads: int, rows: int) -> mx.array:
    size = (1, heads, rows, shape.size)
    return mx.random.normal(size, key=mx.random.key(seed)).astype(shape.dtype)
