"""Kernel sources as shipped, and the launch."""

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
def test_every_kernel_documents_its_layout(name: str) -> None:
    """Layout, limits, grid and source must be at the top of every kernel."""
    text = (FOLDER / f"{name}.metal").read_text(encoding="utf-8")
    assert text.startswith(f"// {name}: ")
    assert (FOLDER / f"{name}.py").exists()
    comment = text.split("\n\n#include")[0].split("// body")[0]
    for part in ("// Grid: ", "// Template: ", "// Source: "):
        assert part in comment, part


@pytest.mark.parametrize("name", KERNELS)
def test_includes_are_resolved_once(name: str) -> None:
    """A helper included twice is a redefinition, a missing one an unknown name."""
    kernel = read_kernel(name, [], [])
    assert '#include "' not in kernel.header
    defined = re.findall(r"^inline \w+ (\w+)\(", kernel.header, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert "// body" not in kernel.header + kernel.body


def test_a_changed_source_has_another_hash() -> None:
    """Stored tuning results are valid for one hash only."""
    assert KERNEL.source_hash == read_kernel(KERNEL.name, KERNEL.inputs, KERNEL.outputs).source_hash
    other = build.Kernel(
        KERNEL.name, KERNEL.inputs, KERNEL.outputs, KERNEL.header + " ", KERNEL.body
    )
    assert other.source_hash != KERNEL.source_hash


def test_a_kernel_is_made_once() -> None:
    """Creating the kernel object per launch takes longer than the launch."""
    assert KERNEL.compiled is KERNEL.compiled


def test_the_device_gets_the_whole_launch() -> None:
    """Executor, Metal and counters must run the same launch."""
    launches: list[Launch] = []

    class Recording:
        def run(self, launch: Launch) -> list[mx.array]:
            launches.append(launch)
            return [mx.zeros(launch.output_shapes[0], launch.output_dtypes[0])]

    dense_verify(mx.ones((5, 64)), mx.ones((100, 64)), device=Recording())
    (launch,) = launches
    assert launch.kernel.name == "dense_verify"
    assert launch.grid[0] == launch.threadgroup[0] <= 256
    assert launch.output_shapes == ((5, 100),)


@pytest.mark.skipif(mx.metal.is_available(), reason="needs a machine without Metal")
def test_without_metal_there_is_no_default_device() -> None:
    """The launchers then use their references."""
    assert build.DEFAULT_DEVICE is None
    launch = Launch(KERNEL, (), (), (1, 1, 1), (1, 1, 1), (), ())
    with pytest.raises((RuntimeError, ValueError)):
        Metal().run(launch)
