"""Reads kernel sources and defines a launch and the devices that run it.

No Python code writes Metal source: special cases are template arguments of a launch.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import mlx.core as mx

FOLDER: Final = Path(__file__).parent
BODY_MARK: Final = "// body\n"
_COMMENT = re.compile(r"//[^\n]*")
_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)

Template = tuple[tuple[str, int | bool | mx.Dtype], ...]


@dataclass(frozen=True)
class Kernel:
    """The source of one kernel and the names of its inputs and outputs, in order.

    A `.metal` file holds a comment (layout, limits, source), helper functions, the line `// body`
    and the statements of the kernel. `#include "name.h"` names a file in the same folder.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str
    body: str
    contiguous: bool = True

    @cached_property
    def source_hash(self) -> str:
        """Twelve hex digits that change whenever the source changes, comments excepted."""
        text = "\0".join((self.name, *self.inputs, *self.outputs, self.header, self.body))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def compiled(self) -> Any:
        """The `mx.fast.metal_kernel` of this source; Metal compiles it at its first launch."""
        return mx.fast.metal_kernel(
            name=self.name,
            input_names=list(self.inputs),
            output_names=list(self.outputs),
            source=self.body,
            header=self.header,
            ensure_row_contiguous=self.contiguous,
        )


class LaunchPlan(NamedTuple):
    """The fields of a launch other than kernel and inputs; equal for all inputs of one shape."""

    template: Template
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]


@dataclass(frozen=True)
class Launch:
    """One complete kernel call. `grid` and `threadgroup` count threads, as in Metal."""

    kernel: Kernel
    inputs: tuple[mx.array, ...]
    template: Template
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[mx.Dtype, ...]
    init_value: float | None = None


class Device(Protocol):
    """Runs launches: `Metal`, or the executor of the tests. None means the reference runs."""

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of `launch`, in the order of the kernel's output names."""
        ...


class Metal:
    """The Apple GPU, through MLX.

    MLX refuses a launch with too many threads for its pipeline when the result is evaluated, not
    here. Autotuning evaluates every geometry before a layer uses it.
    """

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of `launch`, not yet evaluated."""
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


def prepare(device: Device, kernel: Kernel, plan: LaunchPlan) -> Callable[..., Sequence[mx.array]]:
    """Return a function `call(inputs=[...])` that launches `kernel` with `plan` on `device`.

    On Metal it holds the argument lists of MLX, which takes half of the host time of a launch.
    """
    if isinstance(device, Metal):
        return partial(
            kernel.compiled,
            template=list(plan.template) or None,
            grid=plan.grid,
            threadgroup=plan.threadgroup,
            output_shapes=list(plan.output_shapes),
            output_dtypes=list(plan.output_dtypes),
        )
    return lambda inputs: device.run(Launch(kernel, tuple(inputs), *plan))


@cache
def scalar(value: float) -> mx.array:
    """Return a float32 scalar; equal values share one array."""
    return mx.array(value, mx.float32)


DEFAULT_DEVICE: Final[Device | None] = Metal() if mx.metal.is_available() else None


def read_kernel(
    name: str, inputs: Sequence[str], outputs: Sequence[str], *, contiguous: bool = True
) -> Kernel:
    """Return the kernel in `name`.metal with its includes resolved.

    With `contiguous=False` MLX passes strided views without a copy, and the kernel must read
    every input through its strides.
    """
    helpers, body = _text(f"{name}.metal").split(BODY_MARK)
    header = _code(_resolve(helpers, set()))
    return Kernel(name, tuple(inputs), tuple(outputs), header, _code(body), contiguous)


def _code(text: str) -> str:
    """Return `text` without comments and empty lines, which MLX would copy at every launch."""
    lines = (line.rstrip() for line in _COMMENT.sub("", text).splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def _resolve(text: str, seen: set[str]) -> str:
    """Return `text` with the first include of each file replaced by that file."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in seen:
            return ""
        seen.add(name)
        return _resolve(_text(name), seen)

    return _INCLUDE.sub(replacement, text)


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
