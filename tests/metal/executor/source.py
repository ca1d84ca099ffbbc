"""The Metal source that MLX generates for a launch, and its parsed signature.

Exporting a function that calls the kernel passes the source to a callback and needs no Metal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

Kernel = Callable[..., Any]
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the generated kernel: a buffer, or a thread attribute when index is None."""

    name: str
    type: str
    index: int | None

    @property
    def is_output(self) -> bool:
        """Whether the kernel may write this buffer."""
        return self.index is not None and "const" not in self.type.split()


@dataclass(frozen=True)
class Source:
    """The generated source of one launch.

    `entry` is the C++ expression that names the kernel (with its template arguments),
    `row_contiguous`: whether MLX copies strided inputs before the launch.
    """

    name: str
    text: str
    entry: str
    parameters: tuple[Parameter, ...]
    row_contiguous: bool

    @property
    def buffers(self) -> tuple[Parameter, ...]:
        """The buffer parameters in the order of their indices."""
        return tuple(p for p in self.parameters if p.index is not None)


def generate(
    kernel: Kernel,
    inputs: Sequence[mx.array],
    *,
    template: Sequence[tuple[str, Any]],
    grid: Triple,
    threadgroup: Triple,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
    init_value: float | None = None,
) -> Source:
    """Return the source MLX generates for this launch. Inputs are not evaluated."""
    found: list[list[Any]] = []

    def watch(event: dict[str, Any]) -> None:
        if event.get("type") == "primitive" and event.get("name") == "CustomKernel":
            found.append(event["arguments"])

    def call(*arrays: mx.array) -> Any:
        return kernel(
            inputs=list(arrays),
            template=list(template) or None,
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=[tuple(s) for s in output_shapes],
            output_dtypes=list(output_dtypes),
            init_value=init_value,
        )

    mx.export_function(watch, call, *(mx.zeros(x.shape, x.dtype) for x in inputs))
    if len(found) != 1:
        raise RuntimeError(f"expected one kernel in the launch, MLX recorded {len(found)}")
    name, text = found[0][0], found[0][1]
    return _read(name, text, bool(found[0][9]))


@functools.lru_cache(maxsize=64)
def _read(name: str, text: str, row_contiguous: bool) -> Source:
    return Source(name, text, _entry(name, text), _parameters(name, text), row_contiguous)


_SIGNATURE = re.compile(r"\[\[kernel\]\] void (\w+)\(\n(.*?)\) \{\n", re.S)
_PARAMETER = re.compile(r"(.*?)(\w+)\s*\[\[(\w+)(?:\((\d+)\))?\]\]", re.S)


def _parameters(name: str, text: str) -> tuple[Parameter, ...]:
    body = next(m for m in _SIGNATURE.finditer(text) if m.group(1) == name).group(2)
    parameters = []
    for part in body.split(",\n"):
        match = _PARAMETER.fullmatch(part.strip())
        if match is None:
            raise RuntimeError(f"cannot read the kernel parameter {part.strip()!r}")
        type_, parameter, attribute, index = match.groups()
        number = int(index) if attribute == "buffer" else None
        parameters.append(Parameter(parameter, type_.strip(), number))
    return tuple(parameters)


def _entry(name: str, text: str) -> str:
    instantiated = re.search(rf"decltype\(({re.escape(name)}<.*>)\) ", text)
    return instantiated.group(1) if instantiated else name
