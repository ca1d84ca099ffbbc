"""Kernel layers in MLX models: the same results, and kernels only where selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map

from dflash_mlx.kernels.autotuner import Autotuner
from dflash_mlx.kernels.layers import MatrixGroup, replace_linears
from dflash_mlx.kernels.pair_kernels import PairKernels
from dflash_mlx.kernels.tuning_tasks import ATTENTION_ROWS, MATRIX_ROWS, matrix_tasks, row_ranges
from dflash_mlx.metal.build import Device, Launch, Metal
from dflash_mlx.metal.geometry import MatrixGeometry
from dflash_mlx.metal.quantized_verify import QuantizedWeight
from tests.metal.exactness import drawn
from tests.metal.fake_chip import FakeChip


class Counting:
    """A device that records the launches of another one."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches: list[Launch] = []

    def run(self, launch: Launch) -> Sequence[mx.array]:
        self.launches.append(launch)
        return self.device.run(launch)


class Tied(nn.Module):
    """A model with linear layers in a list and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(80, 64)
        self.layers = [nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64, bias=False))]
        self.norm = nn.RMSNorm(64)

    def __call__(self, tokens: mx.array) -> mx.array:
        rows = self.embed_tokens(tokens)
        for layer in self.layers:
            rows = rows + layer(rows)
        logits: mx.array = self.embed_tokens.as_linear(self.norm(rows))
        return logits


def _model(bits: int | None, dtype: mx.Dtype = mx.float32) -> Tied:
    mx.random.seed(3)
    model = Tied()
    model.set_dtype(dtype)
    if bits:
        nn.quantize(model, group_size=32, bits=bits)
    mx.eval(model.parameters())
    return model


TOKENS = mx.array([[5, 3, 79, 0, 7, 7]])


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_replaced_layers_give_the_same_logits(bits: int | None, device: Device) -> None:
    """Replacing layers may change a logit only by the rounding of another order of addition."""
    expected = _model(bits)(TOKENS)
    model = _model(bits)
    counting = Counting(device)
    groups = replace_linears(model, device=counting)
    for group in groups:
        group.choices.select(range(2, 33), MatrixGeometry(2, 2))
    assert mx.allclose(model(TOKENS), expected, rtol=1e-4, atol=1e-5)
    names = {launch.kernel.name for launch in counting.launches}
    assert names == {"quantized_verify" if bits else "dense_verify"}
    assert len(counting.launches) == 3


@pytest.mark.parametrize("bits", [None, 4])
def test_rows_without_a_choice_take_the_stock_path(bits: int | None, device: Device) -> None:
    """Single rows and prompts use stock MLX and keep the same bits."""
    expected = _model(bits)(TOKENS)
    model = _model(bits)
    counting = Counting(device)
    for group in replace_linears(model, device=counting):
        group.choices.select(range(7, 33), MatrixGeometry(2, 2))
    assert mx.array_equal(model(TOKENS), expected)
    assert counting.launches == []


@pytest.mark.parametrize("bits", [None, 8])
def test_replaced_parameters_are_used(bits: int | None, device: Device) -> None:
    """A layer prepares its launches; one with the arrays of before gave the old result."""
    model, other = _model(bits), _model(bits)
    other.update(tree_map(lambda array: array[::-1], _matrices(other)))
    for group in replace_linears(model, device=device):
        group.choices.select(range(2, 33), MatrixGeometry(2, 2))
    mx.eval(model(TOKENS))
    model.update(_matrices(other))
    assert mx.allclose(model(TOKENS), other(TOKENS), rtol=1e-4, atol=1e-5)


def _matrices(model: Tied) -> dict[str, Any]:
    """Return the parameters of the linear layers."""
    found: dict[str, Any] = {"layers": model.layers[0].parameters()}
    return {"layers": [found["layers"]]}


def test_a_later_choice_is_used(device: Device) -> None:
    """A prepared launch must not hold the geometry of an earlier choice."""
    counting = Counting(device)
    model = nn.Sequential(nn.Linear(64, 96, bias=False))
    (group,) = replace_linears(model, device=counting)
    x, grids = mx.ones((1, 4, 64)), []
    for geometry in (MatrixGeometry(1, 1), MatrixGeometry(2, 2), None):
        group.choices.select(range(2, 6), geometry)
        model(x)
        grids.append(len(counting.launches) and counting.launches[-1].grid)
    assert grids == [(32, 12, 1), (64, 6, 1), (64, 6, 1)]
    assert len(counting.launches) == 2


def test_a_call_is_one_launch_for_mlx() -> None:
    """Reshapes around the launch cost as much host time as the arguments."""
    model = nn.Sequential(nn.Linear(64, 96, bias=False))
    for group in replace_linears(model, device=Metal()):
        group.choices.select(range(2, 6), MatrixGeometry(1, 1))
    mx.eval(model.parameters())
    events: list[dict[str, Any]] = []
    mx.export_function(events.append, model, mx.ones((1, 4, 64)))
    primitives = [event["name"] for event in events if event["type"] == "primitive"]
    assert primitives == ["CustomKernel"]


@pytest.mark.parametrize("bits", [None, 4])
def test_parameters_keep_names_and_arrays(bits: int | None, device: Device) -> None:
    """Copied weights would use memory; renamed ones would break code that reads parameters."""
    model = _model(bits)
    before = dict(tree_flatten(model.parameters()))
    replace_linears(model, device=device)
    after = dict(tree_flatten(model.parameters()))
    assert {name: id(array) for name, array in after.items()} == {
        name: id(array) for name, array in before.items()
    }
    assert isinstance(model.layers[0].layers[0], nn.QuantizedLinear if bits else nn.Linear)


def test_layers_of_one_shape_share_their_choices(device: Device) -> None:
    """A shape is tuned once, with all its weights in turn, for any number of layers."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 96))
    groups = replace_linears(model, device=device)
    assert sorted((group.name, len(group.weights)) for group in groups) == [
        ("64x64 float32", 2),
        ("96x64 float32", 1),
    ]


def test_classes_of_mlx_stay_as_they_are(device: Device) -> None:
    """Another model in the same process must not get kernel layers."""
    calls = (nn.Linear.__call__, nn.QuantizedLinear.__call__, nn.Embedding.as_linear)
    replace_linears(_model(4), device=device)
    assert calls == (nn.Linear.__call__, nn.QuantizedLinear.__call__, nn.Embedding.as_linear)
    assert type(_model(None).layers[0].layers[0]) is nn.Linear


def test_other_quantizations_stay_as_they_are(device: Device) -> None:
    """A layer that no kernel supports must not be replaced."""
    model = nn.Sequential(nn.Linear(64, 64))
    nn.quantize(model, mode="mxfp4", group_size=32, bits=4)
    assert replace_linears(model, device=device) == ()
    assert type(model.layers[0]) is nn.QuantizedLinear


def test_without_a_device_nothing_is_replaced() -> None:
    """Without Metal the model keeps the layers of MLX."""
    model = _model(None)
    assert replace_linears(model, device=None) == ()
    assert type(model.layers[0].layers[0]) is nn.Linear


def _autotuned(
    groups: Sequence[MatrixGroup], most_rows: int, device: Device, autotuner: Autotuner
) -> PairKernels:
    kernels = PairKernels(matrix_tasks(groups, most_rows, device), autotuner)
    kernels.autotune(lambda text: None, budget_s=math.inf)
    return kernels


@pytest.mark.parametrize(("stock_s", "chosen"), [(0.001, True), (0.0005, False)])
def test_tuning_selects_the_geometry_of_the_layers(
    stock_s: float, chosen: bool, tmp_path: Path
) -> None:
    """The check, the timing and the store must lead to the choice that the layers read."""
    chip = FakeChip(stock_s=stock_s)
    model = nn.Sequential(nn.Linear(64, 40, bias=False))
    groups = replace_linears(model, device=chip)
    kernels = _autotuned(groups, 5, chip, chip.autotuner(tmp_path))
    assert [result.geometry is not None for result in kernels.results] == [chosen, chosen]
    assert set(groups[0].choices.geometries) == (set(range(2, 6)) if chosen else set())


def test_an_embedding_that_is_not_a_head_is_not_replaced(device: Device) -> None:
    """Tuning a product that the model never computes takes a second of device time."""
    model = _model(4)
    groups = replace_linears(model, embeddings=False, device=device)
    assert type(model.embed_tokens) is nn.QuantizedEmbedding
    assert len(groups) == 2


class Broken:
    """A device that changes one value of every result."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def run(self, launch: Launch) -> Sequence[mx.array]:
        (y,) = self.device.run(launch)
        spoiled = y.astype(mx.float32)
        spoiled[-1, -1] += 0.05 * mx.abs(spoiled).max()
        return [spoiled.astype(y.dtype)]


@pytest.mark.parametrize("bits", [None, 4])
def test_the_check_catches_one_wrong_logit(
    bits: int | None, device: Device, tmp_path: Path
) -> None:
    """A kernel with one value off by 5% of the largest passed a check on averages."""
    weight = drawn(1, (300, 128), mx.bfloat16, outliers=False)
    model = nn.Sequential(nn.Linear(128, 300, bias=False))
    model.layers[0].weight = weight
    if bits:
        nn.quantize(model, group_size=64, bits=bits)
    broken = Broken(device)
    groups = replace_linears(model, device=broken)
    assert isinstance(groups[0].weights[0], QuantizedWeight if bits else mx.array)
    (result,) = _autotuned(groups, 3, broken, FakeChip().autotuner(tmp_path)).results
    assert result.geometry is None
    assert result.reason.startswith("wrong: off by")


def test_the_cases_cover_every_number_of_rows() -> None:
    """A number of rows without a case would never use a kernel."""
    for most in range(2, 33):
        for ends in (MATRIX_ROWS, ATTENTION_ROWS):
            rows = [count for covered in row_ranges(ends, most) for count in covered]
            assert rows[: most - 1] == list(range(2, most + 1))


def test_a_case_decides_row_counts_of_one_pipeline_only() -> None:
    """17 to 24 rows launched a pipeline of three row tiles; only that of four was checked."""
    for rows in row_ranges(MATRIX_ROWS, 32):
        assert -(-rows[0] // 8) == -(-rows[-1] // 8)
