"""Prints the host time of a linear layer's call: stock MLX, and with a kernel.

    python -m tests.metal.host_time

The call is traced, not evaluated, so no Metal is needed. Tracing runs the code of MLX that converts
the arguments and assembles the source of the launch.
"""

from __future__ import annotations

import sys
import time

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.kernels.layers import replace_linears
from dflash_mlx.metal.build import Metal
from dflash_mlx.metal.geometry import MatrixGeometry

ROWS, SIZE = 16, 512
CALLS, REPEATS = 200, 7  # the minimum of the repeats is printed


def call_us(layer: nn.Module) -> float:
    """Return the microseconds that one call of `layer` takes on the host."""
    found: list[float] = []

    def trace(x: mx.array) -> mx.array:
        started = time.perf_counter()
        for _ in range(CALLS):
            y: mx.array = layer(x)
        found.append((time.perf_counter() - started) / CALLS * 1e6)
        return y

    for _ in range(REPEATS):
        mx.export_function(lambda event: None, trace, mx.zeros((1, ROWS, SIZE), mx.bfloat16))
    return min(found)


def make(bits: int | None) -> nn.Sequential:
    """Return a model of one linear layer, quantized or dense."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE, bias=False))
    model.set_dtype(mx.bfloat16)
    if bits:
        nn.quantize(model, 64, bits)
    return model


def main() -> None:
    """Print one line per layer."""
    for name, bits in (("quantized", 4), ("dense", None)):
        model = make(bits)
        stock = call_us(model.layers[0])
        for group in replace_linears(model, device=Metal()):
            group.choices.select(range(2, 33), MatrixGeometry(4, 8))
        ours = call_us(model.layers[0])
        sys.stdout.write(f"{name}: stock MLX {stock:.1f} us, kernel {ours:.1f} us\n")


if __name__ == "__main__":
    main()
