"""Tuning cases of attention: a verified block over a cache, and a draft block over its context.

Shapes: L keys, C context rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.attention_geometry import AttentionGeometry, attention_geometries
from dflash_mlx.metal.block_attention import KERNEL as BLOCK
from dflash_mlx.metal.block_attention import (
    BlockKeys,
    BlockMask,
    block_attention,
    block_attention_reference,
    launch_block,
)
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.matrix_cases import ACCUMULATION, ROUNDING, chain, dtype_name, span
from dflash_mlx.metal.tuning_case import TimedWork, TuningCase
from dflash_mlx.metal.verify_attention import KERNEL as VERIFY
from dflash_mlx.metal.verify_attention import (
    launch_verify,
    verify_attention,
    verify_attention_reference,
)

# Caches used in turn, as in a model: each layer has its own, so none stays in a GPU cache. Two of
# the largest exceed the 48 MB system cache of an M4 Max; four smaller ones are used instead.
SMALL_CACHE_BYTES: Final = 16 * 2**20


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
    shape: HeadShape, rows: range, keys: range, device: Device
) -> TuningCase[AttentionGeometry]:
    """Return the case of verified blocks of `rows` rows over caches of `keys` keys.

    The check and the timing use the ends of both ranges.
    """
    scale = shape.size**-0.5
    queries = _ends(rows, lambda count: _normal(0, shape, shape.heads, count))
    caches = _caches(shape, (keys[-1], keys[-1]))

    def check(geometry: AttentionGeometry) -> str | None:
        for q, n_keys in ((queries[0], keys[0]), (queries[1], keys[0] + 5)):
            k, v = (array[:, :, :n_keys] for array in caches[0])
            out = verify_attention(q, k, v, scale, device=device, geometry=geometry)
            with mx.stream(mx.cpu):
                expected = verify_attention_reference(q.astype(mx.float32), k, v, scale)
            wrong = difference(out, expected)
            if wrong is not None:
                return f"{wrong} with {n_keys} keys"
        return None

    def timed(q: mx.array, n_keys: int) -> TimedWork[AttentionGeometry]:
        views = [tuple(array[:, :, :n_keys] for array in cache) for cache in caches]

        def ours(geometry: AttentionGeometry, row: mx.array, step: int) -> mx.array:
            k, v = views[step % len(views)]
            return launch_verify(row, k, v, scale, device=device, geometry=geometry)

        def stock(row: mx.array, step: int) -> mx.array:
            k, v = views[step % len(views)]
            return mx.fast.scaled_dot_product_attention(row, k, v, scale=scale, mask="causal")

        return TimedWork(
            lambda geometry, steps: chain(q, steps, partial(ours, geometry)),
            lambda steps: chain(q, steps, stock),
        )

    per_head = rows[-1] * shape.heads // shape.groups
    return TuningCase(
        VERIFY.name,
        VERIFY.source_hash,
        f"{shape} x {span(rows)} rows, {span(keys)} keys",
        attention_geometries(shape.size, shape.dtype, per_head, shape.groups, keys[0]),
        check,
        (timed(queries[0], keys[0]), timed(queries[1], keys[-1])),
    )


def block_attention_case(
    shape: HeadShape, rows: range, context: range, mask: BlockMask, device: Device
) -> TuningCase[AttentionGeometry]:
    """Return the case of draft blocks of `rows` rows over `context` context rows.

    Stock MLX gets context and block already concatenated. The cost of concatenation is not
    timed, which favours stock MLX.
    """
    scale = shape.size**-0.5
    queries = _ends(rows, lambda count: _normal(0, shape, shape.heads, count))
    contexts = _caches(shape, (context[-1], context[-1]))
    blocks = _caches(shape, (rows[-1], rows[-1]))

    def sources(q: mx.array, length: int) -> list[BlockKeys]:
        return [
            BlockKeys(
                *(array[:, :, :length] for array in contexts[i]),
                *(array[:, :, : q.shape[2]] for array in blocks[i % len(blocks)]),
            )
            for i in range(len(contexts))
        ]

    def check(geometry: AttentionGeometry) -> str | None:
        for q, length in ((queries[0], context[0]), (queries[1], context[0] + 5)):
            source = sources(q, length)[0]
            out = block_attention(q, source, scale, mask, device=device, geometry=geometry)
            with mx.stream(mx.cpu):
                expected = block_attention_reference(q.astype(mx.float32), source, scale, mask)
            wrong = difference(out, expected)
            if wrong is not None:
                return f"{wrong} with {length} context rows"
        return None

    def timed(q: mx.array, length: int) -> TimedWork[AttentionGeometry]:
        views = sources(q, length)
        joined = [
            (
                mx.concatenate([keys.context_k, keys.block_k], axis=2),
                mx.concatenate([keys.context_v, keys.block_v], axis=2),
            )
            for keys in views
        ]
        array_mask = stock_mask(length, q.shape[2], mask)

        def ours(geometry: AttentionGeometry, row: mx.array, step: int) -> mx.array:
            keys = views[step % len(views)]
            return launch_block(row, keys, scale, mask, device=device, geometry=geometry)

        def stock(row: mx.array, step: int) -> mx.array:
            k, v = joined[step % len(joined)]
            return mx.fast.scaled_dot_product_attention(row, k, v, scale=scale, mask=array_mask)

        return TimedWork(
            lambda geometry, steps: chain(q, steps, partial(ours, geometry)),
            lambda steps: chain(q, steps, stock),
        )

    per_head = rows[-1] * shape.heads // shape.groups
    return TuningCase(
        BLOCK.name,
        BLOCK.source_hash,
        f"{shape} x {span(rows)} rows, {span(context)} context rows, {mask}",
        attention_geometries(shape.size, shape.dtype, per_head, shape.groups, context[0]),
        check,
        (timed(queries[0], context[0]), timed(queries[1], context[-1])),
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


def _ends(rows: range, make: Callable[[int], mx.array]) -> tuple[mx.array, mx.array]:
    return make(rows[0]), make(rows[-1])


def _caches(shape: HeadShape, lengths: tuple[int, int]) -> list[tuple[mx.array, mx.array]]:
    """Return pairs of keys and values of these lengths."""
    size = sum(lengths) * shape.groups * shape.size * shape.dtype.size
    n_caches = 4 if size <= SMALL_CACHE_BYTES else 2
    k, v = lengths
    return [
        (
            _normal(2 * i + 1, shape, shape.groups, k),
            _normal(2 * i + 2, shape, shape.groups, v),
        )
        for i in range(n_caches)
    ]


def _normal(seed: int, shape: HeadShape, heads: int, rows: int) -> mx.array:
    size = (1, heads, rows, shape.size)
    return mx.random.normal(size, key=mx.random.key(seed)).astype(shape.dtype)
