"""The count table: its scaling on small shapes, and the properties of the kernels it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import mlx.core as mx
import pytest

from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.metal.dense_verify import dense_verify
from dflash_mlx.metal.head_argmax import Head, head_argmax
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify
from dflash_mlx.metal.verify_attention import verify_attention
from tests.metal import stock
from tests.metal.count.__main__ import main
from tests.metal.count.baseline import Counted, load, stored_mlx
from tests.metal.count.chips import CHIPS, FLOPS_PER_MULTIPLY, Chip, least_ms
from tests.metal.count.classes import edge_classes
from tests.metal.count.counter import LaunchRecorder, count, groups
from tests.metal.count.entries import HEADS_ALIKE, Entry, blank_weight, entries
from tests.metal.device import ExecutorDevice
from tests.metal.executor import Executor, Objects

pytestmark = pytest.mark.usefixtures("objects")


def _record(call: Callable[[Device], object]) -> list[Launch]:
    recorder = LaunchRecorder()
    call(recorder)
    return recorder.launches


def _weight(outputs: int, inputs: int) -> QuantizedWeight:
    return blank_weight(outputs, inputs)


def _small() -> dict[str, list[Launch]]:
    """Return one small launch list per kernel of the table, with ragged edges."""
    x = mx.zeros((13, 256), mx.bfloat16)
    few = mx.zeros((7, 256), mx.bfloat16)
    dense = mx.zeros((301, 256), mx.bfloat16)
    q = mx.zeros((1, 8, 5, 64), mx.bfloat16)
    k, v = (mx.zeros((1, 4, 1450, 64), mx.bfloat16) for _ in range(2))
    return {
        "quantized_verify": _record(lambda d: quantized_verify(x, _weight(301, 256), device=d)),
        "dense_verify": _record(lambda d: dense_verify(x, dense, device=d)),
        "head_argmax": _record(lambda d: head_argmax(x, Head(_weight(5000, 64 * 4)), device=d)),
        "verify_attention": _record(lambda d: verify_attention(q, k, v, 1.0, device=d)),
        "stock qmv_wide": [stock.qmv_wide(x, _weight(301, 256))],
        "stock qmm_t": [stock.qmm_t(x, _weight(301, 256))],
        "stock gemv_wide": [stock.gemv_wide(few, dense)],
        "stock attention": [stock.tiled_attention(q[0], k[0][:, :100], v[0][:, :100])],
        "stock sdpa_vector": [stock.sdpa_vector(q[0], k[0][:, :100], v[0][:, :100])],
    }


@pytest.mark.parametrize("name", _small())
def test_one_threadgroup_per_class_counts_the_whole_grid(name: str, objects: Objects) -> None:
    """Counts are scaled from one threadgroup per class, so those of a class must be equal."""
    launches = _small()[name]
    alike = HEADS_ALIKE.get(name.replace("stock ", "MLX "), ())
    scaled, whole = (
        count(launches, objects, alike=alike, whole=everything) for everything in (False, True)
    )
    assert replace(scaled, group_bytes={}) == replace(whole, group_bytes={})
    for buffer, size in whole.group_bytes.items():
        # Only rows whose size is not a multiple of 64 bytes share lines differently.
        exact = buffer in ("w", "scales", "biases", "k", "v", "keys")
        assert scaled.group_bytes[buffer] == pytest.approx(size, rel=0 if exact else 0.05), buffer


@pytest.mark.parametrize("name", _small())
def test_kernels_touch_every_byte(name: str, objects: Objects) -> None:
    """The minimum traffic in the table is the size of all arrays, so all must be accessed."""
    for launch in _small()[name]:
        device = ExecutorDevice(Executor(traced=True, objects=objects))
        device.run(launch)
        for buffer, counts in device.runs[0].counts.buffers.items():
            if buffer.endswith(("_shape", "_strides", "_ndim")) or buffer in ("factors", "scale"):
                continue
            assert counts.unique_read + counts.unique_written == counts.size, buffer


def test_classes_cover_the_grid() -> None:
    """The sizes of the classes must add up to the number of threadgroups."""
    for shape in ((1, 1, 1), (2, 300, 1), (7, 4, 50)):
        total = shape[0] * shape[1] * shape[2]
        for alike in ((), (1,)):
            classes = edge_classes(shape, alike)
            assert sum(n for _, n in classes) == total
            assert len({position for position, _ in classes}) == len(classes)


def test_groups_are_clipped_like_mlx_clips() -> None:
    """A threadgroup larger than the grid is one threadgroup."""
    (launch,) = _small()["stock gemv_wide"]
    assert groups(launch) == (2, 76, 1)


def test_minimum_time_is_the_larger_bound() -> None:
    """Bandwidth bounds few rows, arithmetic many."""
    chip = Chip("test", bandwidth=100, tflops=1)
    assert least_ms(chip, 10**9, 10**9) == pytest.approx(10.0)
    assert least_ms(chip, 10**6, 10**11) == pytest.approx(100.0)
    assert len({chip.name for chip in CHIPS}) == 6


def _ours(rows: int) -> list[tuple[Entry, Counted]]:
    stored = load()
    return [(e, stored[e.key]) for e in entries() if not e.stock and e.rows == rows]


@pytest.mark.parametrize("rows", [5, 8, 16])
def test_weights_and_cache_are_read_once(rows: int) -> None:
    """Up to 16 rows, every weight and every key must be read once per round."""
    for entry, counted in _ours(rows):
        assert counted.watched <= 1.01 * entry.watched_bytes, entry.key


def test_no_multiply_is_wasted_at_16_rows() -> None:
    """At 16 rows no multiply may be padding; MLX's matrix kernel issues twice the useful ones."""
    for entry, counted in _ours(16):
        if "keys" not in entry.layer:
            assert counted.multiplies * FLOPS_PER_MULTIPLY <= 1.1 * entry.flops, entry.key


def test_the_stored_table_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """The table must show the shipped kernels."""
    assert main(["--check"]) == 0, capsys.readouterr().err
    if stored_mlx() != version("mlx"):
        pytest.skip(f"stock kernels were counted with MLX {stored_mlx()}, this is {version('mlx')}")
