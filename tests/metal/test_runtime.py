"""Whole pairs decode with kernels, run by the executor or, on a Mac, by the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.decode.loop import propose
from dflash_mlx.kernels.autotuner import Autotuner
from dflash_mlx.kernels.pair_kernels import install_kernels
from dflash_mlx.kernels.result_store import ResultStore, TuningPlatform
from dflash_mlx.metal.build import Device, Launch
from dflash_mlx.models.pair import Pair
from tests.tiny import answer, random_draft, read_prompt, selecting_draft, tiny_target

N_TOKENS = 6
BLOCK = 4
KEYS = (24,)  # the prompt has 45 tokens


class Counting:
    """A device that records the names of the kernels it launches."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.launched: list[str] = []

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of the wrapped device."""
        self.launched.append(launch.kernel.name)
        return self.device.run(launch)


def _divides(path: str, layer: Any) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def _pair(family: str, bits: int | None, second: bool = False) -> Pair:
    """Return a tiny pair with head sizes that the kernels support, quantized or not."""
    heads = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    layers = 3 if family == "qwen3_next" else 2  # the third has attention
    target = tiny_target(family, **heads, hidden_size=128, num_hidden_layers=layers)
    make = selecting_draft if second else random_draft
    bound = make(target, **heads, block_size=BLOCK)
    if bits:
        for model in (target.model, bound.model):
            nn.quantize(model, 32, bits, class_predicate=_divides)
    return Pair(target, bound)


def _forced(pair: Pair, device: Device, folder: Path) -> int:
    """Install every correct kernel in a pair; return their number."""
    autotuner = Autotuner(ResultStore(folder, TuningPlatform("chip", "os", "mlx")), "force")
    kernels = install_kernels(pair, "force", device, autotuner, KEYS)
    assert kernels is not None
    kernels.autotune(lambda text: None, budget_s=math.inf)
    assert kernels.n_used == kernels.n_cases
    return kernels.n_used


@pytest.mark.parametrize(
    ("family", "bits"),
    [("qwen3", 4), ("qwen3", None), ("llama", 8), ("qwen2", None), ("qwen3_next", None)],
)
def test_a_pair_generates_the_tokens_of_stock_mlx(
    family: str, bits: int | None, device: Device, tmp_path: Path
) -> None:
    """With kernels in both models the tokens must be those of the stock layers."""
    expected = answer(_pair(family, bits), N_TOKENS)
    pair, counting = _pair(family, bits), Counting(device)
    _forced(pair, counting, tmp_path)
    counting.launched.clear()
    assert answer(pair, N_TOKENS) == expected
    matrices = "quantized_verify" if bits else "dense_verify"
    others = {"verify_attention", "block_attention", "head_argmax", "head_merge"}
    assert set(counting.launched) >= {matrices, *others}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_dflash2_draft_proposes_the_same_block(
    temperature: float, device: Device, tmp_path: Path
) -> None:
    """A draft that computes other proposals is accepted less, without any error."""
    blocks = []
    for kernels in (False, True):
        pair, counting = _pair("qwen3", None, second=True), Counting(device)
        if kernels:
            _forced(pair, counting, tmp_path)
            counting.launched.clear()
        cache, state = read_prompt(pair)
        _, block = propose(pair.with_sampling(temperature, 5), cache, state, BLOCK)
        blocks.append(block)
    stock, ours = blocks
    assert ours.tokens.tolist() == stock.tokens.tolist()
    assert ours.draft_is_finite.item()
    if stock.candidates is not None and ours.candidates is not None:
        assert mx.array_equal(ours.candidates.ids, stock.candidates.ids)
        assert mx.allclose(ours.candidates.probs, stock.candidates.probs, atol=1e-5)
    assert counting.launched.count("candidate_path") == 1
    assert counting.launched.count("head_argmax") == 1
    assert counting.launched.count("grouped_conv") == 2 * 2 * 2  # layers, sublayers, either side
