"""Kernel texts as they ship, and the one way to launch them."""

from __future__ import annotations

import re

import mlx.core as mx
import pytest

from dflash_mlx.metal import build
from dflash_mlx.metal.build import FOLDER, Launch, Metal, read_kernel
from dflash_mlx.metal.dense_verify import dense_verify
from dflash_mlx.metal.quantized_verify import KERNEL

KERNELS = sorted(path.stem for path in FOLDER.glob("*.metal"))


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_a_pair_that_says_what_it_is(name: str) -> None:
    """A reader must find layout, limits, geometry and provenance on top of every kernel."""
    text = (FOLDER / f"{name}.metal").read_text(encoding="utf-8")
    assert text.startswith(f"// {name}: ")
    assert (FOLDER / f"{name}.py").exists()
    comment = text.split("\n\n#include")[0].split("// body")[0]
    for part in ("// Grid: ", "// Template: ", "// Source: "):
        assert part in comment, part


@pytest.mark.parametrize("name", KERNELS)
def test_includes_are_resolved_once(name: str) -> None:
    """A helper pasted twice is a redefinition, one left out an unknown name."""
    kernel = read_kernel(name, [], [])
    assert '#include "' not in kernel.header
    defined = re.findall(r"^inline \w+ (\w+)\(", kernel.header, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert "// body" not in kernel.header + kernel.body


def test_a_changed_text_has_another_hash() -> None:
    """The gate's answers hang on this hash."""
    assert KERNEL.source_hash == read_kernel(KERNEL.name, KERNEL.inputs, KERNEL.outputs).source_hash
    other = build.Kernel(
        KERNEL.name, KERNEL.inputs, KERNEL.outputs, KERNEL.header + " ", KERNEL.body
    )
    assert other.source_hash != KERNEL.source_hash


def test_a_kernel_is_made_once() -> None:
    """Making it again per launch would cost more than the launch."""
    assert KERNEL.compiled is KERNEL.compiled


def test_the_launch_is_handed_to_the_device_as_it_stands() -> None:
    """Executor, Metal and counters all see the same launch, or none of them proves anything."""
    seen: list[Launch] = []

    class Looking:
        def run(self, launch: Launch) -> list[mx.array]:
            seen.append(launch)
            return [mx.zeros(launch.output_shapes[0], launch.output_dtypes[0])]

    dense_verify(mx.ones((5, 64)), mx.ones((100, 64)), device=Looking())
    (launch,) = seen
    assert launch.kernel.name == "dense_verify"
    assert launch.grid[0] == launch.threadgroup[0] <= 256
    assert launch.output_shapes == ((5, 100),)


@pytest.mark.skipif(mx.metal.is_available(), reason="needs a machine without Metal")
def test_without_metal_there_is_no_default_device() -> None:
    """The launchers then answer with their references."""
    assert build.DEFAULT_DEVICE is None
    launch = Launch(KERNEL, (), (), (1, 1, 1), (1, 1, 1), (), ())
    with pytest.raises((RuntimeError, ValueError)):
        Metal().run(launch)
