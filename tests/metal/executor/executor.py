"""`Executor.run`: launches an MLX Metal kernel on the CPU with the arguments of MLX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tests.metal.executor.facts import Counts, Report
from tests.metal.executor.launch import ORDERS, Buffer, Bytes, Geometry, launch
from tests.metal.executor.lower import translation_unit
from tests.metal.executor.objects import Objects
from tests.metal.executor.source import Kernel, Source, Triple, generate

MAX_THREADS = 1024
BLANK_BYTES = 1 << 20


@dataclass(frozen=True)
class Run:
    """Outputs, reports and counts. Without tracing, only faults and guards are reported."""

    outputs: list[mx.array]
    reports: list[Report]
    counts: Counts
    source: Source


class Executor:
    """Runs kernels made by `mx.fast.metal_kernel` through a C++ shim.

    traced: check every load and store (15 to 50 times slower; keep shapes small).
    order: "ascending", "descending" or "random" (with `seed`) order of lanes, simdgroups and
    threadgroups. A correct kernel gives the same result in every order.
    blank: count only. Inputs over 1 MB are neither evaluated nor copied and read as zeros.
    limit_s: seconds of processor time after which a launch is stopped and reported.
    """

    def __init__(
        self,
        traced: bool = False,
        order: str = "ascending",
        seed: int = 0,
        *,
        blank: bool = False,
        limit_s: int = 300,
        objects: Objects | None = None,
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}; choose one of {', '.join(ORDERS)}")
        self.traced, self.order, self.seed = traced, order, seed
        self.blank, self.limit_s = blank, limit_s
        self.objects = objects or Objects()

    def run(
        self,
        kernel: Kernel,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]] | None = None,
        grid: Triple = (1, 1, 1),
        threadgroup: Triple = (1, 1, 1),
        output_shapes: Sequence[Sequence[int]] = (),
        output_dtypes: Sequence[mx.Dtype] = (),
        init_value: float | None = None,
        *,
        only: Sequence[Triple] = (),
    ) -> Run:
        """Launch `kernel`; the arguments are those of the kernel itself.

        only: positions of the threadgroups to run; all of the grid when empty.
        Raises ValueError where Metal would refuse the launch, CompileError for bad source.
        """
        inputs = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        _check_geometry(grid, threadgroup)
        source = generate(
            kernel,
            inputs,
            template=template or (),
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            init_value=init_value,
        )
        path = self.objects.kernel(source.name, translation_unit(source), traced=self.traced)
        buffers = self._buffers(source, inputs, output_shapes, output_dtypes, init_value)
        counts, reports = launch(
            self.objects,
            path,
            buffers,
            Geometry(grid, threadgroup, tuple(only)),
            order=self.order,
            seed=self.seed,
            traced=self.traced,
            limit_s=self.limit_s,
        )
        results = [b.result for b in buffers if b.result is not None]
        outputs = [
            _to_array(raw, tuple(shape), dtype)
            for raw, shape, dtype in zip(results, output_shapes, output_dtypes, strict=True)
        ]
        return Run(outputs, reports, counts, source)

    def _buffers(
        self,
        source: Source,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        init_value: float | None,
    ) -> list[Buffer]:
        """Return the memory of every buffer: inputs with shape, strides and ndim, then outputs."""
        buffers: list[Buffer] = []
        names = [p.name for p in source.buffers]
        for x in inputs:
            name = names[len(buffers)]
            raw, strides = self._contents(x, source.row_contiguous)
            buffers.append(Buffer(name, raw.size if raw is not None else x.nbytes, raw))
            facts: dict[str, Bytes] = {
                f"{name}_shape": np.array(x.shape, np.int32).view(np.uint8),
                f"{name}_strides": np.array(strides, np.int64).view(np.uint8),
                f"{name}_ndim": np.array([x.ndim], np.int32).view(np.uint8),
            }
            for fact, value in facts.items():
                if names[len(buffers)] == fact:
                    buffers.append(Buffer(fact, value.nbytes, value))
        for shape, dtype in zip(output_shapes, output_dtypes, strict=True):
            size = math.prod(shape) * dtype.size
            initial = None
            if init_value is not None:
                initial = _to_bytes(mx.full(tuple(shape), init_value, dtype))
            buffers.append(Buffer(names[len(buffers)], size, initial, np.empty(size, np.uint8)))
        if len(buffers) != len(names):
            raise RuntimeError(f"the kernel takes buffers {names}, {len(buffers)} were made")
        return buffers

    def _contents(self, x: mx.array, row_contiguous: bool) -> tuple[Bytes | None, list[int]]:
        """Return the bytes of an input as the kernel reads them, and its strides in elements."""
        contiguous = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
        if self.blank and x.nbytes > BLANK_BYTES:
            return None, contiguous
        if row_contiguous or x.ndim == 0 or x.size == 0:
            return _to_bytes(x), contiguous
        return _strided_bytes(x)


def _check_geometry(grid: Triple, threadgroup: Triple) -> None:
    if min(*grid, *threadgroup) < 1:
        raise ValueError(f"grid {grid} and threadgroup {threadgroup} must be positive")
    threads = math.prod(min(g, t) for g, t in zip(grid, threadgroup, strict=True))
    if threads > MAX_THREADS:
        raise ValueError(f"threadgroup {threadgroup} has {threads} threads, Metal allows 1024")


def _to_bytes(x: mx.array) -> Bytes:
    """Return the row-major bytes of an array."""
    flat = mx.contiguous(x).reshape(-1)
    plain = flat.astype(mx.uint8) if x.dtype == mx.bool_ else flat.view(mx.uint8)
    return np.array(plain)


def _strided_bytes(x: mx.array) -> tuple[Bytes, list[int]]:
    """Return the bytes with the strides of the array; gaps between elements hold NaN."""
    array: Any = x  # the stubs hide the buffer protocol
    view = memoryview(array)
    steps = list(view.strides or ())
    if min(steps) < 0:
        return _to_bytes(x), [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    span = sum((n - 1) * s for n, s in zip(x.shape, steps, strict=True)) + x.dtype.size
    raw = np.full(span, 0xFF, np.uint8)
    elements = np.ndarray((*x.shape, x.dtype.size), np.uint8, raw, 0, (*steps, 1))
    elements[...] = _to_bytes(x).reshape(*x.shape, x.dtype.size)
    return raw, [s // x.dtype.size for s in steps]


def _to_array(raw: Bytes, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    if math.prod(shape) == 0:
        return mx.zeros(shape, dtype)
    flat = mx.array(raw)
    return (flat.astype(mx.bool_) if dtype == mx.bool_ else flat.view(dtype)).reshape(shape)
