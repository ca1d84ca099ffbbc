"""The gated delta rule over a block, with the tape that takes part of it back.

Letters: M rows, HK key heads and HV value heads of DK and DV elements. Kernel:
delta_verify.metal.
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

MAX_ROWS: Final = 32
SIMDGROUPS: Final = 4
ROWS_PER_SIMDGROUP: Final = 8

KERNEL: Final = read_kernel(
    "delta_verify", ("q", "k", "v", "decay", "strength", "state"), ("y", "tape", "after")
)


@dataclass(frozen=True)
class DeltaRows:
    """What a layer reads: q and k [1, M, HK, DK], normalised; v [1, M, HV, DV].

    `decay` float32 and `strength`, both [1, M, HV], multiply the state and the correction.
    """

    q: mx.array
    k: mx.array
    v: mx.array
    decay: mx.array
    strength: mx.array


@dataclass(frozen=True)
class DeltaRun:
    """Outputs y [1, M, HV, DV], the tape, float32 of that shape, and the state behind them."""

    y: mx.array
    tape: mx.array
    after: mx.array


def delta_verify_reference(rows: DeltaRows, state: mx.array) -> DeltaRun:
    """Outputs, corrections and final state [1, HV, DV, DK], row after row in float32."""
    repeats = rows.v.shape[2] // rows.k.shape[2]
    q, k = (mx.repeat(a.astype(mx.float32), repeats, axis=2) for a in (rows.q, rows.k))
    v, strength = rows.v.astype(mx.float32), rows.strength.astype(mx.float32)
    outputs, tape = [], []
    for row in range(v.shape[1]):
        key = k[:, row, :, None]
        state = state * rows.decay[:, row, :, None, None]
        recalled = (state * key).sum(axis=-1)
        delta = strength[:, row, :, None] * (v[:, row] - recalled)
        state = state + delta[..., None] * key
        outputs.append((state * q[:, row, :, None]).sum(axis=-1))
        tape.append(delta)
    return DeltaRun(mx.stack(outputs, axis=1).astype(rows.v.dtype), mx.stack(tape, axis=1), state)


def delta_verify_refusal(rows: DeltaRows, state: mx.array) -> str | None:
    """Why the kernel cannot take these inputs, or None."""
    return first_reason(_reasons(rows, state))


def delta_verify(
    rows: DeltaRows, state: mx.array, *, device: Device | None = DEFAULT_DEVICE
) -> DeltaRun:
    """Run a block through a gated-delta layer whose state is float32 [1, HV, DV, DK].

    Raises BadRequest with the refusal reason for inputs that the kernel cannot take.
    """
    refuse("delta_verify", delta_verify_refusal(rows, state))
    if device is None:
        return delta_verify_reference(rows, state)
    _, _, value_heads, value_size = rows.v.shape
    threads = 32 * SIMDGROUPS
    launch = Launch(
        kernel=KERNEL,
        inputs=(rows.q, rows.k, rows.v, rows.decay, rows.strength, state),
        template=(("T", rows.v.dtype), ("DK", rows.k.shape[3]), ("SIMDS", SIMDGROUPS)),
        grid=(threads, -(-value_size // (ROWS_PER_SIMDGROUP * SIMDGROUPS)), value_heads),
        threadgroup=(threads, 1, 1),
        output_shapes=(rows.v.shape, rows.v.shape, state.shape),
        output_dtypes=(rows.v.dtype, mx.float32, mx.float32),
    )
    y, tape, after = device.run(launch)
    return DeltaRun(y, tape, after)


def _reasons(rows: DeltaRows, state: mx.array) -> Iterator[str | None]:
    yield rank_refusal("q", rows.q, "1 M HK DK")
    yield rank_refusal("v", rows.v, "1 M HV DV")
    batch, n_rows, key_heads, key_size = rows.q.shape
    value_heads, value_size = rows.v.shape[2:]
    if batch != 1:
        yield f"{batch} sequences; one at a time is needed"
    if not 1 <= n_rows <= MAX_ROWS:
        yield f"{n_rows} rows; 1 to {MAX_ROWS} are needed"
    if key_size % 16:
        yield f"keys of {key_size} elements; a multiple of 16 is needed"
    if value_heads % key_heads:
        yield f"{value_heads} value heads for {key_heads} key heads; a multiple is needed"
    yield shape_refusal("k", rows.k, (1, n_rows, key_heads, key_size))
    yield shape_refusal("v", rows.v, (1, n_rows, value_heads, value_size))
    yield shape_refusal("decay", rows.decay, (1, n_rows, value_heads))
    yield shape_refusal("strength", rows.strength, (1, n_rows, value_heads))
    yield shape_refusal("state", state, (1, value_heads, value_size, key_size))
    for name, array in (("q", rows.q), ("k", rows.k), ("strength", rows.strength)):
        if array.dtype != rows.v.dtype:
            yield f"{name} is {array.dtype} and v {rows.v.dtype}; one type is needed"
    yield float_refusal("v", rows.v)
    for name, array in (("decay", rows.decay), ("state", state)):
        if array.dtype != mx.float32:
            yield f"{name} is {array.dtype}; float32 is needed"
