"""The kernel test modules, their cases, and how one case runs.

A kernel test module has `AXES`, optionally `WATCHED` (axes of traced runs), and
`_run(case, device)`, which launches the kernel and compares the result.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import mlx.core as mx

import dflash_mlx.metal
from dflash_mlx.metal.build import Device, Kernel, Launch
from tests.metal.covering import Case, covering_cases
from tests.metal.executor import Source
from tests.metal.executor.source import generate

HERE = Path(__file__).parent


def shipped_kernels() -> dict[str, Kernel]:
    """Return every kernel of `dflash_mlx.metal` by name."""
    modules = pkgutil.iter_modules(dflash_mlx.metal.__path__)
    texts = (importlib.import_module(f"dflash_mlx.metal.{module.name}") for module in modules)
    found = [value for text in texts for value in vars(text).values() if isinstance(value, Kernel)]
    return {kernel.name: kernel for kernel in found}


def kernel_tests() -> dict[str, ModuleType]:
    """Return every kernel test module by the name of its kernel."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "\nAXES" in text and "\ndef _run(" in text:
            name = path.stem.removeprefix("test_")
            found[name] = importlib.import_module(f"tests.metal.{path.stem}")
    return found


def cases(module: ModuleType, *, watched: bool = False, most: int = 0) -> list[Case]:
    """Return the covering cases of the module, or `most` of them spread evenly."""
    axes = getattr(module, "WATCHED", module.AXES) if watched else module.AXES
    every = covering_cases(axes)
    if not most or len(every) <= most:
        return every
    return [every[i * len(every) // most] for i in range(most)]


def run_case(module: ModuleType, case: Case, device: Device) -> None:
    """Run one case; raises AssertionError for a wrong result or a report."""
    module._run(case, device)


def run_test(test: Callable[..., None], device: Device) -> None:
    """Call a test function whose fixtures are all devices."""
    fixtures = dict.fromkeys(inspect.signature(test).parameters, device)
    test(**fixtures)


class SourceRecorder:
    """A device that records the source of every launch and returns zeros."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return zeros in the shapes of the outputs."""
        source = generate(
            launch.kernel.compiled,
            launch.inputs,
            template=launch.template,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=launch.output_shapes,
            output_dtypes=launch.output_dtypes,
            init_value=launch.init_value,
        )
        self.sources[source.text] = source
        shapes = zip(launch.output_shapes, launch.output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in shapes]


def sources(module: ModuleType, most: int) -> list[Source]:
    """Return the generated sources of up to `most` cases of the module, without duplicates."""
    recorder = SourceRecorder()
    for case in cases(module, most=most):
        try:
            run_case(module, case, recorder)
        except AssertionError:
            continue  # zeros are wrong results; only the source is needed
    return list(recorder.sources.values())
