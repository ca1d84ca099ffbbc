"""A linear layer read by row range computes the same as the whole layer, in one chunk of memory."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.convert.plan.layer_runner import LayerRunner
from dflash_mlx.convert.plan.streamed import StreamedLinear
from dflash_mlx.convert.tensors import chunks
from tests.convert.checkpoints import target_folder, weights_of
from tests.convert.test_trace import Held


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of three rows."""
    monkeypatch.setattr(
        "dflash_mlx.convert.plan.streamed.chunks",
        lambda rows: chunks(rows, 3 * rows.shape[-1] * 4),
    )


class Watched(Held):
    """Rows that record the longest range that was read."""

    longest = 0

    def read(self, start, stop):
        self.longest = max(self.longest, stop - start)
        return super().read(start, stop)


@pytest.mark.parametrize("bias", [True, False])
def test_products_equal_those_of_the_whole_layer(short_chunks, bias):
    """Row ranges, a shorter last range and a bias must not change the product."""
    linear = nn.Linear(8, 10, bias=bias)
    rows = Watched(linear.weight)
    streamed = StreamedLinear(linear, rows, mx.float32)
    entering = mx.random.normal((2, 5, 8))
    assert mx.allclose(streamed(entering), linear(entering), atol=1e-6)
    assert rows.longest == 3, "memory is what it is for"
    assert mx.array_equal(streamed.weight, linear.weight)


def test_streamed_layers_give_the_output_of_loaded_layers(tmp_path, short_chunks):
    """A weight left over from another layer changes only the values."""
    source = target_folder(tmp_path / "source", "qwen3")
    weights = {name: array.astype(mx.float32) for name, array in weights_of(source).items()}
    values = {name: Held(array) for name, array in weights.items()}
    runner = LayerRunner(json.loads((source / "config.json").read_text()), "source")
    hidden = runner.embed(values, [1, 2, 3, 4])
    expected = runner.model.model
    expected.load_weights(
        [(name.removeprefix("model."), array) for name, array in weights.items()], strict=False
    )
    whole = hidden
    for index in range(runner.n_layers):
        whole = runner.run(index, whole)
    for index in range(runner.n_layers):
        runner.fill(index, values)
        names = [name for name, _ in tree_flatten(runner.layer(index).parameters())]
        assert not any("proj.weight" in name for name in names)
        hidden = runner.run(index, hidden)
        runner.empty(index)
        names = [name for name, _ in tree_flatten(runner.layer(index).parameters())]
        assert "mlp.up_proj.weight" in names
    assert np.allclose(np.array(hidden), np.array(whole), atol=1e-5)
