"""Layers without a kernel are listed with the reason."""

import mlx.nn as nn
import pytest

from dflash_mlx.kernels.attention import replace_attention
from dflash_mlx.kernels.layers import replace_linears
from dflash_mlx.kernels.unsupported import unsupported_layers
from tests.metal.fake_chip import FakeChip
from tests.tiny import tiny_target


def _listed(model):
    chip = FakeChip()
    replace_linears(model, device=chip)
    replace_attention(model, chip)
    return {(found.kernel, found.shape): found.reason for found in unsupported_layers(model)}


def test_a_supported_model_lists_nothing():
    """A line for a layer with a kernel would send users looking for an error."""
    assert _listed(tiny_target("qwen3", head_dim=64).model) == {}


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("qwen3_moe", {"head_dim": 64}, "experts use the gather operations of MLX"),
        ("qwen3", {"head_dim": 16}, "this class of attention, or its head size, has no kernel"),
    ],
)
def test_the_reason_names_what_is_not_supported(family, changes, expected):
    """`doctor --kernels` showed nothing for layers that stay with stock MLX."""
    reasons = _listed(tiny_target(family, **changes).model).values()
    assert f"not supported: {expected}" in reasons


def test_another_quantization_is_listed():
    """A model in mxfp4 used stock MLX without any line in `doctor --kernels`."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    nn.quantize(model, mode="mxfp4", group_size=32, bits=4)
    assert _listed(model) == {
        ("quantized_verify", "2 layers, QuantizedLinear"): (
            "not supported: the quantization mode is mxfp4; affine is needed"
        )
    }
