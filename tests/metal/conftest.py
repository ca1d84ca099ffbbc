"""Devices of the kernel tests: the executor on Linux, or the GPU with `--device metal` on a Mac.

`device` is a plain build, `ordered_device` each of three lane orders, `traced_device` checks every
memory access. On a Mac all three are the GPU, so the same cases test kernels and executor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from dflash_mlx.metal.build import Device, Metal
from tests.metal.covering import Batch, Case, batches, covering_cases
from tests.metal.device import ExecutorDevice
from tests.metal.executor import Executor, Objects, missing
from tests.metal.executor.launch import ORDERS

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("executor", "metal"),
        default="executor",
        help="run kernel tests in the Linux executor (default) or on this Mac's GPU",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="run kernels over the product of all values instead of all pairs",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over(axes): run a kernel test over cases of these axes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test marked `over(axes)`: all pairs, or the product with `--full`."""
    mark = metafunc.definition.get_closest_marker("over")
    if mark is not None:
        full = metafunc.config.getoption("--full")
        cases = batches(mark.args[0]) if full else covering_cases(mark.args[0])
        metafunc.parametrize("case", cases, ids=_id)


def _id(case: Case | Batch) -> str:
    first = case.cases[0] if isinstance(case, Batch) else case
    more = f"-and-{len(case.cases) - 1}-more" if isinstance(case, Batch) else ""
    return "-".join(map(str, first.values())) + more


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test once for every case of a batch; a failure names the case."""
    batch = pyfuncitem.funcargs.get("case")
    if not isinstance(batch, Batch):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    for case in batch.cases:
        try:
            pyfuncitem.obj(**{**given, "case": case})
        except Exception as error:
            error.add_note(f"the case was {case}")
            raise
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.metal)


@pytest.fixture(scope="session")
def on_gpu(request: pytest.FixtureRequest) -> bool:
    """Whether the tests run on a Mac's GPU."""
    chosen = request.config.getoption("--device", "executor")
    if chosen == "metal" and not mx.metal.is_available():
        raise pytest.UsageError("--device metal needs a Mac whose MLX has Metal")
    return bool(chosen == "metal")


@pytest.fixture(scope="session")
def objects(on_gpu: bool) -> Objects:
    """The store of compiled kernels; skips tests of the executor where it cannot run."""
    reason = "runs in the executor only" if on_gpu else missing()
    if reason:
        pytest.skip(reason)
    return Objects()


def _device(request: pytest.FixtureRequest, order: str, traced: bool) -> Device:
    if request.getfixturevalue("on_gpu"):
        return Metal()
    objects = request.getfixturevalue("objects")
    return ExecutorDevice(Executor(traced, order, seed=7, objects=objects))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """A device without tracing."""
    return _device(request, "ascending", traced=False)


@pytest.fixture
def device_in(request: pytest.FixtureRequest) -> Callable[[str], Device]:
    """A function from an order of lanes, simdgroups and threadgroups to a device."""
    return lambda order: _device(request, order, traced=False)


@pytest.fixture(params=ORDERS)
def ordered_device(request: pytest.FixtureRequest) -> Device:
    """A device in each order of lanes, simdgroups and threadgroups."""
    return _device(request, request.param, traced=False)


@pytest.fixture
def traced_device(request: pytest.FixtureRequest) -> Device:
    """A device that checks every access; use small shapes (K <= 1024, N <= 512, keys <= 600)."""
    return _device(request, "random", traced=True)
