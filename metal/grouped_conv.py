"""DFlash 2's grouped dynamic causal convolution over a block.

Shapes: B rows, C channels, O kernel size, G channels per group. Kernel: grouped_conv.metal.
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
MAX_KERNEL_SIZE: Final = 8

KERNEL: Final = read_kernel("grouped_conv", ("x", "base", "change"), ("y",))


def grouped_conv_reference(x: mx.array, base: mx.array, change: mx.array) -> mx.array:
    """Convolve x [B, C] with base [O, C] + change [B, O, C / G], in float32: [B, C].

    Kernel position o of row t reads row t - o. Rows before row 0 are zero.
    """
    rows, channels = x.shape
    kernel_size = base.shape[0]
    per_channel = mx.repeat(change.astype(mx.float32), channels // change.shape[2], axis=2)
    coefficients = base.astype(mx.float32) + per_channel
    padded = mx.concatenate([mx.zeros((kernel_size - 1, channels)), x.astype(mx.float32)])
    y = mx.zeros((rows, channels))
    for position in range(kernel_size):
        start = kernel_size - 1 - position
        y = y + coefficients[:, position] * padded[start : start + rows]
    return y.astype(x.dtype)


def grouped_conv_refusal(x: mx.array, base: mx.array, change: mx.array) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(x, base, change))


def grouped_conv(
    x: mx.array, base: mx.array, change: mx.array, *, device: Device | None = DEFAULT_DEVICE
) -> mx.array:
    """Convolve x [B, C] with base [O, C] + change [B, O, C / G], summed in float32: [B, C].

    Raises BadRequest for inputs that the kernel does not support.
    """
    refuse("grouped_conv", grouped_conv_refusal(x, base, change))
    if device is None:
        return grouped_conv_reference(x, base, change)
    return launch_conv(x, base, change, device=device)


def launch_conv(x: mx.array, base: mx.array, change: mx.array, *, device: Device) -> mx.array:
    """Return `grouped_conv` of supported inputs, without checking them."""
    channels = x.shape[1]
    launch = Launch(
        kernel=KERNEL,
        inputs=(x, base, change),
        template=(
            ("T", x.dtype),
            ("W", base.dtype),
            ("KERNEL_SIZE", base.shape[0]),
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
    kernel_size, groups = base.shape[0], change.shape[2]
    if not 1 <= kernel_size <= MAX_KERNEL_SIZE:
        yield f"the kernel size is {kernel_size}; 1 to {MAX_KERNEL_SIZE} is needed"
    yield shape_refusal("base", base, (kernel_size, channels))
    yield shape_refusal("change", change, (rows, kernel_size, groups))
    if change.dtype != x.dtype:
        yield f"change is {change.dtype} and x {x.dtype}; one type is needed"
    if groups < 1 or channels % groups:
        yield f"{groups} groups for {channels} channels; a divisor of the channels is needed"
