"""Kernel texts, and the one place where a kernel is launched.

A kernel is a `.metal` file that any compiler can read: a comment with layout, limits and
provenance, helper functions, the line `// body`, and the statements of the kernel itself.
`#include "name.h"` names a text beside it. Nothing here or elsewhere writes Metal source:
special cases are template arguments of the launch.

Who runs a launch is an argument. On Apple GPUs it is `Metal`; the tests hand in an executor
for Linux; None means that the caller computes its reference instead.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import mlx.core as mx

FOLDER: Final = Path(__file__).parent
BODY_MARK: Final = "// body\n"
_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)

Template = tuple[tuple[str, int | bool | mx.Dtype], ...]


@dataclass(frozen=True)
class Kernel:
    """The text of one kernel with the names of its inputs and outputs, in order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str
    contiguous: bool = True

    @cached_property
    def source_hash(self) -> str:
        """Twelve hex digits that change whenever the shipped text changes."""
        text = "\0".join((self.name, *self.inputs, *self.outputs, self.header, self.body))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def compiled(self) -> Any:
        """The `mx.fast.metal_kernel` of this text, made once; Metal compiles at first use."""
        return mx.fast.metal_kernel(
            name=self.name,
            input_names=list(self.inputs),
            output_names=list(self.outputs),
            source=self.body,
            header=self.header,
            ensure_row_contiguous=self.contiguous,
        )


class LaunchPlan(NamedTuple):
    """What a launch is besides its kernel and inputs; the same for all inputs of a shape."""

    template: Template
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]


@dataclass(frozen=True)
class Launch:
    """One kernel call, complete: `grid` and `threadgroup` count threads, as Metal does."""

    kernel: Kernel
    inputs: tuple[mx.array, ...]
    template: Template
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]
    init_value: float | None = None


class Device(Protocol):
    """Whatever can run a launch."""

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """The outputs of `launch`, in the order of its kernel's output names."""
        ...


class Metal:
    """The Apple GPU, through MLX.

    A pipeline that takes fewer threads than the launch asks for is refused by MLX when the
    result is evaluated, not here; `gate.py` meets that before any layer is swapped.
    """

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """The outputs of `launch`, still lazy."""
        outputs: Sequence[mx.array] = launch.kernel.compiled(
            inputs=list(launch.inputs),
            template=list(launch.template) or None,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=list(launch.output_shapes),
            output_dtypes=list(launch.output_dtypes),
            init_value=launch.init_value,
        )
        return outputs


DEFAULT_DEVICE: Final[Device | None] = Metal() if mx.metal.is_available() else None


def read_kernel(
    name: str, inputs: Sequence[str], outputs: Sequence[str], *, contiguous: bool = True
) -> Kernel:
    """The kernel in `name`.metal, its includes resolved.

    `contiguous=False` hands strided views to the kernel as they are; it must then read
    every input through its strides.
    """
    helpers, body = _text(f"{name}.metal").split(BODY_MARK)
    return Kernel(name, tuple(inputs), tuple(outputs), _resolve(helpers, set()), body, contiguous)


def _resolve(text: str, seen: set[str]) -> str:
    """`text` with every include replaced, once, by the file that it names."""

    def included(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in seen:
            return ""
        seen.add(name)
        return _resolve(_text(name), seen)

    return _INCLUDE.sub(included, text)


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
