"""DFlash 2's grouped dynamic causal convolution over a block.

Letters: B rows, C channels, O taps, G channels per group. Kernel: grouped_conv.metal.
"""

from collections.abc import Iterator
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

THREADS: Final = 256
MAX_TAPS: Final = 8

KERNEL: Final = read_kernel("grouped_conv", ("x", "base", "change"), ("y",))


def grouped_conv_reference(x: mx.array, base: mx.array, change: mx.array) -> mx.array:
    """Convolve x [B, C] with base [O, C] + change [B, O, C / G], in float32: [B, C].

    Tap o of row t looks at row t - o; there is nothing before row 0.
    """
    rows, channels = x.shape
    taps = base.shape[0]
    per_channel = mx.repeat(change.astype(mx.float32), channels // change.shape[2], axis=2)
    coefficients = base.astype(mx.float32) + per_channel
    padded = mx.concatenate([mx.zeros((taps - 1, channels)), x.astype(mx.float32)])
    y = mx.zeros((rows, channels))
    for tap in range(taps):
        start = taps - 1 - tap
        y = y + coefficients[:, tap] * padded[start : start + rows]
    return y.astype(x.dtype)


def grouped_conv_refusal(x: mx.array, base: mx.array, change: mx.array) -> str | None:
    """Why the kernel cannot take these inputs, or None."""
    return first_reason(_reasons(x, base, change))


def grouped_conv(
    x: mx.array, base: mx.array, change: mx.array, *, device: Device | None = DEFAULT_DEVICE
) -> mx.array:
    """Convolve x [B, C] with base [O, C] + change [B, O, C / G], summed in float32: [B, C].

    Raises BadRequest with the refusal reason for inputs that the kernel cannot take.
    """
    refuse("grouped_conv", grouped_conv_refusal(x, base, change))
    if device is None:
        return grouped_conv_reference(x, base, change)
    return launch_conv(x, base, change, device=device)


def launch_conv(x: mx.array, base: mx.array, change: mx.array, *, device: Device) -> mx.array:
    """`grouped_conv` of inputs that are known to fit; nothing is checked here."""
    channels = x.shape[1]
    launch = Launch(
        kernel=KERNEL,
        inputs=(x, base, change),
        template=(
            ("T", x.dtype),
            ("W", base.dtype),
            ("TAPS", base.shape[0]),
            ("GROUP", channels // change.shape[2]),
        ),
        grid=(-(-channels // THREADS) * THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=(x.shape,),
        output_dtypes=(x.dtype,),
    )
    (y,) = device.run(launch)
    return y


def _reasons(x: mx.array, base: mx.array, change: mx.array) -> Iterator[str | None]:
    yield rank_refusal("x", x, "B C")
    yield rank_refusal("base", base, "O C")
    yield rank_refusal("change", change, "B O C/G")
    for name, array in (("x", x), ("base", base), ("change", change)):
        yield float_refusal(name, array)
    rows, channels = x.shape
    taps, groups = base.shape[0], change.shape[2]
    if not 1 <= taps <= MAX_TAPS:
        yield f"{taps} taps; 1 to {MAX_TAPS} are needed"
    yield shape_refusal("base", base, (taps, channels))
    yield shape_refusal("change", change, (rows, taps, groups))
    if change.dtype != x.dtype:
        yield f"change is {change.dtype} and x {x.dtype}; one type is needed"
    if groups < 1 or channels % groups:
        yield f"{groups} groups of {channels} channels; a divisor is needed"
