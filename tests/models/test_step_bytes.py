"""The bytes of weights that a plain step reads, which bound its speed."""

import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from tests.tiny import tiny_target
from tests.tiny_configs import CONFIGS

ROUTED = (".switch_mlp.", ".switch_glu.", ".experts.")


def expected_bytes(target):
    """Return the expected bytes: half of the experts, one row of an untied embedding, the rest."""
    n_bytes = 0.0
    for name, array in tree_flatten(target.model.parameters()):
        if "embed_tokens" in name and not (target.is_tied and "per_layer" not in name):
            n_bytes += array.nbytes / array.shape[0]
        else:
            n_bytes += array.nbytes / (2 if any(part in name for part in ROUTED) else 1)
    return round(n_bytes)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_reads_half_of_the_experts_and_one_row_of_an_embedding(family):
    """Counting all experts made a plain step look faster than the memory allows."""
    target = tiny_target(family)
    assert target.shape.step_bytes == expected_bytes(target)


def test_quantized_weights_count_as_they_are_packed():
    """Scales and biases of packed weights were not counted."""
    target = tiny_target("qwen3_moe", hidden_size=64, moe_intermediate_size=64)
    whole = expected_bytes(target)
    nn.quantize(target.model, 64, 4)
    assert target.shape.step_bytes == expected_bytes(target) < whole / 3
