"""Converted targets equal those of mlx-lm's converter and load in mlx-lm."""

import json

import mlx.core as mx
import pytest
from mlx_lm import convert as mlx_lm_convert
from mlx_lm.utils import load_model

from dflash_mlx.convert.quantize import dequantize_rows, quantize_rows
from dflash_mlx.convert.write.work_folder import file_hash
from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel
from tests.convert.checkpoints import run, same, snapshot, target_folder, weights_of

FLAGS = {
    "4 bits": ({"bits": 4}, {"q_bits": 4}),
    "3 bits in groups of 32": ({"bits": 3, "group_size": 32}, {"q_bits": 3, "q_group_size": 32}),
    "mxfp8": ({"mode": "mxfp8"}, {"q_mode": "mxfp8"}),
    "nvfp4 in float16": (
        {"mode": "nvfp4", "dtype": "float16"},
        {"q_mode": "nvfp4", "dtype": "float16"},
    ),
}


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def source(request, tmp_path_factory):
    return target_folder(tmp_path_factory.mktemp("source") / request.param, request.param)


@pytest.mark.parametrize("flags", FLAGS)
def test_weights_equal_those_of_mlx_lm(source, tmp_path, flags):
    """Other rounding than mlx-lm's would give other models under the same options."""
    ours, theirs = FLAGS[flags]
    run(source, tmp_path / "ours", **ours)
    mlx_lm_convert(str(source), str(tmp_path / "theirs"), quantize=True, **theirs)
    assert same(weights_of(tmp_path / "ours"), weights_of(tmp_path / "theirs")) == []


@pytest.mark.parametrize("recipe", ["uniform", "head8"])
def test_the_output_runs_in_mlx_lm(source, tmp_path, recipe):
    """mlx-lm must find the quantization settings of every path."""
    run(source, tmp_path / "out", recipe=recipe)
    model, config = load_model(tmp_path / "out")
    logits = model(mx.array([[1, 2, 3]]))
    assert mx.isfinite(logits).all()
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    assert weights_of(tmp_path / "out")[f"{head}.weight"].shape[1] == (
        64 * (8 if recipe == "head8" else 4) // 32
    )


def test_the_same_options_give_the_same_bytes(source, tmp_path):
    """Equal options must give equal hashes."""
    run(source, tmp_path / "a", bits=4, verify=True)
    run(source, tmp_path / "b", bits=4, verify=True)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


@pytest.mark.parametrize("options", [{"bits": 4}, {}, {"recipe": "head8"}, {"mode": "mxfp8"}])
def test_converting_an_output_again_changes_nothing(source, tmp_path, options):
    """A second conversion shifted norms or rounded weights again."""
    run(source, tmp_path / "once", **options)
    again = {} if options == {} else options
    outcome = run(tmp_path / "once", tmp_path / "twice", **again)
    assert outcome.unchanged
    assert snapshot(tmp_path / "once") == snapshot(tmp_path / "twice")


def test_other_bits_for_a_quantized_source_are_refused_with_a_remedy(source, tmp_path):
    """Quantized values must not be quantized again without an explicit option."""
    run(source, tmp_path / "once", bits=4)
    with pytest.raises(BadRequest, match="--dequantize"):
        run(tmp_path / "once", tmp_path / "twice", bits=8)
    assert not (tmp_path / "twice").exists()


def test_dequantize_gives_the_values_of_mlx_lm(source, tmp_path):
    """--dequantize alone gives unquantized weights; with bits, it quantizes the values again."""
    run(source, tmp_path / "packed", bits=4)
    run(tmp_path / "packed", tmp_path / "plain", dequantize=True)
    mlx_lm_convert(str(tmp_path / "packed"), str(tmp_path / "theirs"), dequantize=True)
    assert same(weights_of(tmp_path / "plain"), weights_of(tmp_path / "theirs")) == []
    assert "quantization" not in json.loads((tmp_path / "plain/config.json").read_text())
    run(tmp_path / "packed", tmp_path / "wide", dequantize=True, bits=8)
    model, _ = load_model(tmp_path / "wide")
    assert mx.isfinite(model(mx.array([[1]]))).all()


def test_shards_hold_the_weights_of_one_file(source, tmp_path):
    """An index with wrong file names loads part of a model."""
    run(source, tmp_path / "one", bits=4)
    run(source, tmp_path / "many", bits=4, shard_bytes=20_000)
    files = list((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    assert all(file.stat().st_size < 30_000 for file in files)
    assert same(weights_of(tmp_path / "one"), weights_of(tmp_path / "many")) == []
    index = json.loads((tmp_path / "many/model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in mx.load(str(tmp_path / "many" / file))


def test_undivided_rows_are_listed_and_left_unquantized_on_request(tmp_path):
    """mlx-lm leaves such weights unquantized without a message."""
    source = target_folder(tmp_path / "odd", "qwen3", intermediate_size=96)
    with pytest.raises(BadRequest, match="down_proj"):
        run(source, tmp_path / "out", bits=4)
    outcome = run(source, tmp_path / "out", bits=4, keep_undivided=True)
    plain = outcome.jobs[0].plan.left_plain
    assert plain == tuple(f"model.layers.{index}.mlp.down_proj" for index in range(3))
    load_model(tmp_path / "out")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_named_and_leave_no_output(source, tmp_path, value):
    """A damaged checkpoint must be refused and leave no output."""
    broken = tmp_path / "broken"
    weights = weights_of(source)
    name = "model.layers.1.self_attn.o_proj.weight"
    weights[name] = mx.where(
        mx.arange(weights[name].size).reshape(weights[name].shape) == 7, value, weights[name]
    )
    broken.mkdir()
    (broken / "config.json").write_bytes((source / "config.json").read_bytes())
    mx.save_safetensors(str(broken / "model.safetensors"), weights)
    with pytest.raises(BadCheckpoint, match=name):
        run(broken, tmp_path / "out", bits=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model_type": "no_such_family"}, UnsupportedModel, "newer mlx-lm"),
        ({"model_file": "model.py"}, UnsupportedModel, "never run"),
        ({"num_hidden_layers": 4}, BadCheckpoint, "lacks model.layers.3"),
        ({"num_hidden_layers": 2}, BadCheckpoint, "contains model.layers.2"),
        ({"vocab_size": 250}, BadCheckpoint, "has the shape"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            UnsupportedModel,
            "quantized by 'gptq'",
        ),
        ({"quantization": {"bits": None, "group_size": 64}}, BadCheckpoint, "has quantization"),
        ({"hidden_size": "x"}, BadCheckpoint, "hidden_size is 'x'"),
        ({"model_type": None}, BadCheckpoint, "has no model_type"),
    ],
)
def test_a_wrong_configuration_gives_one_line(source, tmp_path, change, error, words):
    """The error must be one line and precede any output."""
    bad = tmp_path / "bad"
    bad.mkdir()
    config = json.loads((source / "config.json").read_text())
    (bad / "config.json").write_text(json.dumps({**config, **change}))
    (bad / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    with pytest.raises(error, match=words) as found:
        run(bad, tmp_path / "out")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


def test_a_dequantized_folder_describes_its_own_files(source, tmp_path):
    """The card of a dequantized folder was a copy of its source's, with hashes of other files."""
    run(source, tmp_path / "packed", bits=4)
    outcome = run(tmp_path / "packed", tmp_path / "plain", dequantize=True)
    assert not outcome.unchanged
    origin = json.loads((tmp_path / "plain/pair.json").read_text())["target_origin"]
    assert origin["options"] == {"dequantize": True}
    assert origin["shards"] == {
        "model.safetensors": file_hash(tmp_path / "plain/model.safetensors")
    }


@pytest.mark.parametrize("mode", ["nvfp4", "mxfp4"])
def test_rows_with_an_odd_number_of_groups_convert(tmp_path, mode):
    """MLX's CPU backend fails on an odd number of nvfp4 groups, and so did the conversion."""
    group_size = 16 if mode == "nvfp4" else 32
    sizes = {"hidden_size": 5 * group_size, "intermediate_size": 7 * group_size, "vocab_size": 261}
    source = target_folder(tmp_path / "source", "llama", head_dim=group_size, **sizes)
    outcome = run(source, tmp_path / "out", mode=mode, verify=True)
    assert outcome.checks[0].divergence is not None
    assert all(error.relative < 0.2 for error in outcome.checks[0].errors)
    run(tmp_path / "out", tmp_path / "values", dequantize=True)


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (3, 5), (1, 2), (4, 3)])
def test_each_row_quantizes_alone(rows, groups):
    """The row that completes a pair of groups must not change the other rows."""
    settings = {"bits": 4, "group_size": 16, "mode": "nvfp4"}
    values = mx.random.normal((rows, groups * 16))
    words, scales = quantize_rows(values, settings)
    both = mx.concatenate([values, values])
    expected = mx.quantize(both, **settings)
    assert mx.array_equal(words, expected[0][:rows])
    assert mx.array_equal(scales, expected[1][:rows])
    unpacked = dequantize_rows(words, scales, None, settings)
    assert mx.array_equal(unpacked, mx.dequantize(*expected, **settings)[:rows])
