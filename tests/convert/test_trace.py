"""mlx-lm's `sanitize`, traced by row, gives the same as on whole tensors."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.convert.plan.computed import ComputedRows
from dflash_mlx.convert.plan.target_layout import build_model
from dflash_mlx.convert.plan.trace import trace_rule
from dflash_mlx.convert.tensors import dtype_name, from_mlx, read_all, row_count


class Held:
    """A tensor in memory that counts the rows that are read."""

    def __init__(self, array):
        self.array = array
        self.dtype = dtype_name(array.dtype)
        self.shape = tuple(array.shape)
        self.n_read = 0

    def read(self, start, stop):
        self.n_read += stop - start
        return from_mlx(self.array.reshape(-1, self.shape[-1]))[start:stop]


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    **{"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 50},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_experts": 4},
    **{"num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": []},
    **{"moe_intermediate_size": 16, "rope_theta": 1e4, "tie_word_embeddings": False},
    **{"max_position_embeddings": 100, "norm_topk_prob": True, "rms_norm_eps": 1e-6},
}
GPT_OSS = {
    "model_type": "gpt_oss",
    **{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 50},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rope_theta": 1e4},
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    **{"rms_norm_eps": 1e-5, "layer_types": ["full_attention", "sliding_attention"]},
}
QWEN3_5 = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5",
        **{"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 50},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
        **{"linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 16},
        **{"linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-5},
        **{"full_attention_interval": 4, "tie_word_embeddings": True},
        **{"rope_parameters": {"rope_theta": 1e4, "type": "default"}},
        **{"max_position_embeddings": 100},
    },
}


def random(*shape):
    return mx.random.normal(shape).astype(mx.bfloat16)


def octets(*shape):
    return mx.random.randint(0, 255, shape).astype(mx.uint8)


def qwen3_moe_tensors():
    shapes = {"up_proj": (16, 32), "gate_proj": (16, 32), "down_proj": (32, 16)}
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight": random(*shape)
        for layer in range(2)
        for expert in range(4)
        for name, shape in shapes.items()
    }


def gpt_oss_tensors():
    base = "model.layers.0.mlp.experts"
    return {
        f"{base}.gate_up_proj_blocks": octets(4, 128, 2, 16),
        f"{base}.gate_up_proj_scales": octets(4, 128, 2),
        f"{base}.gate_up_proj_bias": random(4, 128),
        f"{base}.down_proj_blocks": octets(4, 64, 2, 16),
        f"{base}.down_proj_scales": octets(4, 64, 2),
        f"{base}.down_proj_bias": random(4, 64),
    }


def qwen3_5_tensors():
    found = {"mtp.fc.weight": random(3, 3)}
    for name, array in tree_flatten(build_model(QWEN3_5, "x").parameters()):
        published = name.replace("language_model.model", "model.language_model")
        value = random(*array.shape)
        found[published] = value.moveaxis(2, 1) if "conv1d" in name else value
    return found


CASES = {
    # configuration, tensors, how many outputs need whole tensors at once
    "stacked experts": (QWEN3_MOE, qwen3_moe_tensors, set()),
    "packed blocks taken apart": (GPT_OSS, gpt_oss_tensors, {"bias"}),
    "shifted norms": (QWEN3_5, qwen3_5_tensors, {"norm", "conv1d"}),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_the_rule_on_whole_tensors(case):
    """Experts in a wrong order, or a norm shifted twice, give wrong text with correct shapes."""
    config, make, whole = CASES[case]
    tensors = make()
    found = trace_rule(build_model(config, "x").sanitize, {n: Held(a) for n, a in tensors.items()})
    expected = build_model(config, "x").sanitize(dict(tensors))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        rows = found[name]
        got = read_all(rows)
        assert (got.shape, got.dtype) == (array.shape, array.dtype), name
        assert mx.array_equal(got, array), name
        total = row_count(rows.shape)
        pieces = [rows.read(start, min(start + 3, total)) for start in range(0, total, 3)]
        assert np.array_equal(np.concatenate(pieces), rows.read(0, total)), name
        if isinstance(rows, ComputedRows):
            assert any(part in name for part in whole), f"{name} is read whole"


def test_a_chunk_of_stacked_experts_reads_only_its_rows():
    """Experts stacked in memory exceed the memory of the machine."""
    tensors = {name: Held(array) for name, array in qwen3_moe_tensors().items()}
    found = trace_rule(build_model(QWEN3_MOE, "x").sanitize, tensors)
    found["model.layers.0.mlp.switch_mlp.up_proj.weight"].read(20, 28)
    assert sum(held.n_read for held in tensors.values()) == 8


def test_computed_outputs_read_only_their_inputs():
    """Outputs that are not rearranged rows are computed from only the tensors they depend on."""
    tensors = {"a": Held(random(4, 6)), "b": Held(random(4, 6)), "c": Held(random(9, 9))}

    def rule(arrays):
        made = mx.contiguous((arrays["a"] + arrays["b"]).T)
        return {"sum": made, "c": arrays["c"], "tail": arrays["c"][2:5]}

    found = trace_rule(rule, tensors)
    expected = tensors["a"].array + tensors["b"].array
    assert mx.array_equal(read_all(found["sum"]), expected.T)
    assert tensors["c"].n_read == 0
    assert mx.array_equal(read_all(found["tail"]), tensors["c"].array[2:5])
