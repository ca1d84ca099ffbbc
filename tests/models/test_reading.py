"""The weights that a plain step reads, by which its speed is bounded."""

import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from tests.tiny import tiny_target
from tests.tiny_configs import CONFIGS

ROUTED = (".switch_mlp.", ".switch_glu.", ".experts.")


def counted(target):
    """Half of the experts, one row of an embedding that is no head, and all the rest."""
    n_bytes = 0.0
    for name, array in tree_flatten(target.model.parameters()):
        if "embed_tokens" in name and not (target.is_tied and "per_layer" not in name):
            n_bytes += array.nbytes / array.shape[0]
        else:
            n_bytes += array.nbytes / (2 if any(part in name for part in ROUTED) else 1)
    return round(n_bytes)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_step_reads_half_of_the_experts_and_one_row_of_an_embedding(family):
    """All experts of a mixture made a plain step look faster than its memory."""
    target = tiny_target(family)
    assert target.shape.step_bytes == counted(target)


def test_quantized_weights_count_as_they_are_packed():
    """Scales are read with the weights they belong to."""
    target = tiny_target("qwen3_moe", hidden_size=64, moe_intermediate_size=64)
    whole = counted(target)
    nn.quantize(target.model, 64, 4)
    assert target.shape.step_bytes == counted(target) < whole / 3
