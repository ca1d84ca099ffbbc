"""Attention of a verified block over a cache; each key is read once per KV head.

Shapes: H query heads, G KV heads, M rows, L keys, D elements per head. Kernel:
verify_attention.metal, then attention_merge.metal where the keys are split.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.attention_geometry import (
    HEAD_SIZES,
    AttentionGeometry,
    attention_geometries,
)
from dflash_mlx.metal.attention_merge import attention_merge
from dflash_mlx.metal.build import (
    DEFAULT_DEVICE,
    Device,
    Launch,
    LaunchPlan,
    read_kernel,
    scalar,
)
from dflash_mlx.metal.refusal import (
    first_reason,
    float_refusal,
    rank_refusal,
    refuse,
    shape_refusal,
    size_refusal,
)

MAX_ROWS: Final = 32

KERNEL: Final = read_kernel(
    "verify_attention", ("q", "k", "v", "scale"), ("out",), contiguous=False
)


def verify_attention_reference(
    q: mx.array, k: mx.array, v: mx.array, scale: float, window: int | None = None
) -> mx.array:
    """Return the attention [1, H, M, D] of the last M of L positions, computed in float32.

    Row i is at position L - M + i. It attends to the last `window` keys up to that position.
    """
    rows, keys = q.shape[2], k.shape[2]
    position = mx.arange(keys - rows, keys)[:, None]
    key = mx.arange(keys)[None]
    visible = key <= position
    if window is not None:
        visible = visible & (key > position - window)
    return attend_in_float32(q, k, v, scale, visible)


def attend_in_float32(
    q: mx.array, k: mx.array, v: mx.array, scale: float, visible: mx.array
) -> mx.array:
    """Return the attention [1, H, M, D] in q's dtype with the mask `visible` [M, L]."""
    _, heads, rows, size = q.shape
    groups = k.shape[1]
    grouped = q.astype(mx.float32).reshape(1, groups, heads // groups, rows, size)
    scores = grouped @ k.astype(mx.float32)[:, :, None].swapaxes(-1, -2) * scale
    weights = mx.softmax(mx.where(visible, scores, -mx.inf), axis=-1)
    out = weights @ v.astype(mx.float32)[:, :, None]
    return out.reshape(1, heads, rows, size).astype(q.dtype)


def verify_attention_refusal(
    q: mx.array, k: mx.array, v: mx.array, window: int | None = None
) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(q, k, v, window))


def verify_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    *,
    window: int | None = None,
    device: Device | None = DEFAULT_DEVICE,
    geometry: AttentionGeometry | None = None,
) -> mx.array:
    """Return the attention [1, H, M, D] of the last M of L positions, in q's dtype.

    q is [1, H, M, D], k and v are [1, G, L, D]; views of larger caches are read in place.
    Row i is at position L - M + i. It attends to the last `window` keys up to that position.
    Raises BadRequest for inputs that the kernel does not support.
    """
    refuse("verify_attention", verify_attention_refusal(q, k, v, window))
    if device is None:
        return verify_attention_reference(q, k, v, scale, window)
    rows = q.shape[2] * q.shape[1] // k.shape[1]
    shape = (q.shape[3], q.dtype, rows, k.shape[1], k.shape[2])
    chosen = geometry or attention_geometries(*shape)[0]
    return launch_verify(q, k, v, scale, window, device=device, geometry=chosen)


def launch_verify(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    window: int | None = None,
    *,
    device: Device,
    geometry: AttentionGeometry,
) -> mx.array:
    """Return `verify_attention` of supported inputs, without checking them."""
    _, heads, rows, _ = q.shape
    plan = _plan(q.dtype, heads, k.shape[1], rows, q.shape[3], window or 0, geometry)
    (out,) = device.run(Launch(KERNEL, (q, k, v, scalar(scale)), *plan))
    return out if geometry.splits == 1 else attention_merge(out, q.dtype, device=device)


@cache
def _plan(
    dtype: mx.Dtype,
    heads: int,
    groups: int,
    rows: int,
    size: int,
    window: int,
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
            ("WINDOW", window),
            ("DIRECT", splits == 1),
        ),
        grid=(threads, groups * geometry.row_blocks(rows * heads // groups), splits),
        threadgroup=(threads, 1, 1),
        output_shapes=((1, heads, rows, size) if splits == 1 else (splits, heads, rows, size + 2),),
        output_dtypes=(dtype if splits == 1 else mx.float32,),
    )


def _reasons(q: mx.array, k: mx.array, v: mx.array, window: int | None) -> Iterator[str | None]:
    yield from attention_reasons(q, k, v)
    rows, keys = q.shape[2], k.shape[2]
    if not 2 <= rows <= MAX_ROWS:
        yield f"q has {rows} rows; 2 to {MAX_ROWS} are needed"
    if keys < rows:
        yield f"{keys} keys for {rows} rows; at least {rows} are needed, the rows' own keys"
    if window is not None and window < 1:
        yield f"window is {window}; 1 or more, or None, is needed"


def attention_reasons(q: mx.array, k: mx.array, v: mx.array) -> Iterator[str | None]:
    """Yield why an attention kernel does not support q, k and v, or None."""
    for name, array, letters in (("q", q, "1 H M D"), ("k", k, "1 G L D"), ("v", v, "1 G L D")):
        yield rank_refusal(name, array, letters)
        yield float_refusal(name, array)
        yield size_refusal(name, array)
        if array.shape[0] != 1:
            yield f"{name} has batch size {array.shape[0]}; 1 is needed"
        if array.dtype != q.dtype:
            yield f"{name} is {array.dtype} and q {q.dtype}; one type is needed"
    heads, groups, size = q.shape[1], k.shape[1], q.shape[3]
    if size not in HEAD_SIZES:
        yield f"the head size is {size}; one of {HEAD_SIZES} is needed"
    if heads % groups:
        yield f"{heads} query heads for {groups} KV heads; a multiple is needed"
    yield shape_refusal("k", k, (1, groups, k.shape[2], size))
    yield shape_refusal("v", v, k.shape)
