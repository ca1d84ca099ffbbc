"""Taking back the refused rows of a block from gated-delta layers, all layers in one launch.

Letters: L layers, M rows, HK key heads and HV value heads of DK and DV elements, W rows of a
convolution window of C channels. Kernel: delta_rollback.metal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, read_kernel
from dflash_mlx.metal.refusal import (
    first_reason,
    float_refusal,
    rank_refusal,
    refuse,
    shape_refusal,
)

SIMDGROUPS: Final = 4
ROWS_PER_SIMDGROUP: Final = 8

KERNEL: Final = read_kernel(
    "delta_rollback",
    ("kept", "state", "tape", "k", "decay", "rows"),
    ("restored", "window"),
)


@dataclass(frozen=True)
class DeltaTape:
    """What the layers did to a block, stacked over layers.

    `state` [L, HV, DV, DK] float32 before the block; `tape` [L, M, HV, DV] of `delta_verify`;
    `k` [L, M, HK, DK]; `decay` [L, M, HV] float32; `rows` [L, W + M, C], the convolution
    window before the block and the block's rows behind it.
    """

    state: mx.array
    tape: mx.array
    k: mx.array
    decay: mx.array
    rows: mx.array


@dataclass(frozen=True)
class Restored:
    """The states [L, HV, DV, DK] and windows [L, W, C] behind the kept rows."""

    state: mx.array
    window: mx.array


def delta_rollback_reference(kept: mx.array, done: DeltaTape) -> Restored:
    """States and windows behind the first `kept` rows, a scalar array, in float32."""
    layers, rows, value_heads, _ = done.tape.shape
    keys = mx.repeat(done.k.astype(mx.float32), value_heads // done.k.shape[2], axis=2)
    state = done.state
    for row in range(rows):
        replayed = state * done.decay[:, row, :, None, None]
        replayed = replayed + done.tape[:, row, :, :, None] * keys[:, row, :, None]
        state = mx.where(row < kept.reshape(1), replayed, state)
    window = done.rows.shape[1] - rows
    index = mx.broadcast_to(
        (mx.clip(kept.reshape(1), 0, rows) + mx.arange(window))[None, :, None],
        (layers, window, done.rows.shape[2]),
    )
    return Restored(state, mx.take_along_axis(done.rows, index, axis=1))


def delta_rollback_refusal(kept: mx.array, done: DeltaTape) -> str | None:
    """Why the kernel cannot take these inputs, or None."""
    return first_reason(_reasons(kept, done))


def delta_rollback(
    kept: mx.array, done: DeltaTape, *, device: Device | None = DEFAULT_DEVICE
) -> Restored:
    """States and windows of all layers behind the first `kept` rows of a block.

    `kept` is an int32 scalar array, so that the host need not know it; values outside 0 to M
    count as the nearest of these. Raises BadRequest with the refusal reason for inputs that
    the kernel cannot take.
    """
    refuse("delta_rollback", delta_rollback_refusal(kept, done))
    if device is None:
        return delta_rollback_reference(kept, done)
    layers, rows, value_heads, value_size = done.tape.shape
    window = done.rows.shape[1] - rows
    threads = 32 * SIMDGROUPS
    row_blocks = -(-value_size // (ROWS_PER_SIMDGROUP * SIMDGROUPS))
    launch = Launch(
        kernel=KERNEL,
        inputs=(kept.reshape(1), done.state, done.tape, done.k, done.decay, done.rows),
        template=(
            ("DK", done.k.shape[3]),
            ("SIMDS", SIMDGROUPS),
            ("WINDOW", window),
        ),
        grid=(threads, row_blocks + 1, layers * value_heads),
        threadgroup=(threads, 1, 1),
        output_shapes=(done.state.shape, (layers, window, done.rows.shape[2])),
        output_dtypes=(mx.float32, done.rows.dtype),
    )
    state, kept_rows = device.run(launch)
    return Restored(state, kept_rows)


def _reasons(kept: mx.array, done: DeltaTape) -> Iterator[str | None]:
    if kept.size != 1 or kept.dtype != mx.int32:
        yield f"kept is {kept.dtype} {list(kept.shape)}; one int32 is needed"
    yield rank_refusal("tape", done.tape, "L M HV DV")
    yield rank_refusal("k", done.k, "L M HK DK")
    yield rank_refusal("rows", done.rows, "L W+M C")
    layers, rows, value_heads, value_size = done.tape.shape
    key_heads, key_size = done.k.shape[2:]
    if key_size % 16:
        yield f"keys of {key_size} elements; a multiple of 16 is needed"
    if value_heads % key_heads:
        yield f"{value_heads} value heads for {key_heads} key heads; a multiple is needed"
    yield shape_refusal("state", done.state, (layers, value_heads, value_size, key_size))
    yield shape_refusal("k", done.k, (layers, rows, key_heads, key_size))
    yield shape_refusal("decay", done.decay, (layers, rows, value_heads))
    yield shape_refusal("rows", done.rows, (layers, done.rows.shape[1], done.rows.shape[2]))
    if done.rows.shape[1] <= rows:
        yield f"{done.rows.shape[1]} convolution rows for {rows} rows; a window before is needed"
    for name, array in (("state", done.state), ("tape", done.tape), ("decay", done.decay)):
        if array.dtype != mx.float32:
            yield f"{name} is {array.dtype}; float32 is needed"
    yield float_refusal("k", done.k)
    yield float_refusal("rows", done.rows)
