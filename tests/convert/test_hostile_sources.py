"""Sources with impossible values are refused in one line, before memory or time is spent."""

import io
import json
import zipfile

import mlx.core as mx
import pytest

from dflash_mlx.convert.sources import torch_files
from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError, UnsupportedModel
from tests.convert.checkpoints import draft_folder, run, target_folder, weights_of


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": 5},
        {"architectures": [1]},
        {"architectures": {"a": 1}},
        {"text_config": 5},
        {"text_config": [1]},
        {"model_type": ["llama"]},
        {"quantization": "x"},
        {"quantization": {"bits": 7, "group_size": 64}},
        {"quantization": {"bits": 4, "group_size": 0}},
        {"quantization": {"bits": True, "group_size": 64}},
        {"quantization": {"bits": 4, "group_size": 64, "mode": ["affine"]}},
        {"quantization_config": 5},
        {"quantization_config": {"bits": "x"}},
        {"quantization_config": {"quant_method": ["x"]}},
        {"hidden_size": 0},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": 1e300},
        {"rope_scaling": "yarn"},
        {"rope_parameters": 2},
        {"vocab_size": 2**62},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["target", "draft"])
def test_wrong_values_in_a_configuration_give_one_line(tmp_path, kind, changes):
    """TypeError, AttributeError and ZeroDivisionError, or a loop over 10^12 layers."""
    make = {"target": target_folder, "draft": draft_folder}[kind]
    source = make(tmp_path / "source")
    change_config(source, **changes)
    if kind == "draft" and "vocab_size" in changes:
        return  # compared with the target's, not with the weights of the draft
    with pytest.raises(DFlashError) as found:
        run(source, tmp_path / "out")
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 1000
    assert not (tmp_path / "out").exists()


def test_a_deeply_nested_configuration_is_refused(tmp_path):
    """A value 900 levels deep is read, and writing it again exceeds the recursion limit."""
    source = target_folder(tmp_path / "source")
    value = 0
    for _ in range(900):
        value = [value]
    change_config(source, extra=value)
    with pytest.raises(BadCheckpoint, match="nested"):
        run(source, tmp_path / "out")


def test_a_folder_in_place_of_the_weights_gives_one_line(tmp_path):
    """IsADirectoryError was a traceback."""
    source = target_folder(tmp_path / "source")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").mkdir()
    with pytest.raises(BadCheckpoint, match="model"):
        run(source, tmp_path / "out")


def test_scales_without_a_quantization_entry_are_refused(tmp_path):
    """Packed words without their settings would be written as if they were values."""
    source = target_folder(tmp_path / "source")
    run(source, tmp_path / "packed", bits=4)
    config = json.loads((tmp_path / "packed/config.json").read_text())
    config = {key: value for key, value in config.items() if not key.startswith("quantization")}
    (tmp_path / "packed/config.json").write_text(json.dumps(config))
    with pytest.raises(BadCheckpoint, match="quantization entry"):
        run(tmp_path / "packed", tmp_path / "out")


@pytest.mark.parametrize("part", ["scales", "biases"])
@pytest.mark.parametrize("how", ["missing", "another type", "another shape"])
def test_parts_of_a_quantized_weight_must_belong_together(tmp_path, part, how):
    """Scales of another shape or type gave MLX's errors, or wrong values."""
    run(target_folder(tmp_path / "source"), tmp_path / "packed", bits=4)
    weights = weights_of(tmp_path / "packed")
    name = f"model.layers.1.self_attn.o_proj.{part}"
    if how == "missing":
        del weights[name]
    elif how == "another type":
        weights[name] = weights[name].astype(mx.int32)
    else:
        weights[name] = mx.zeros((weights[name].shape[0], 7), weights[name].dtype)
    mx.save_safetensors(str(tmp_path / "packed/model.safetensors"), weights)
    (tmp_path / "packed/model.safetensors.index.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"layers\.1\.self_attn\.o_proj"):
        run(tmp_path / "packed", tmp_path / "out", dequantize=True)


def test_long_names_are_cut_in_messages(tmp_path):
    """A message quoted a tensor name of 100,000 characters."""
    source = target_folder(tmp_path / "source")
    weights = weights_of(source) | {"x" * 100_000: mx.zeros((2,))}
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    with pytest.raises(BadCheckpoint, match="more characters") as found:
        run(source, tmp_path / "out")
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize("case", ["compressed", "declares too much"])
def test_archive_entries_larger_than_the_file_are_refused(tmp_path, case):
    """torch allocates the declared size of an entry before it reads it."""
    path = tmp_path / "pytorch_model.bin"
    how = zipfile.ZIP_DEFLATED if case == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("archive/data/0", bytes(100_000))
    if case != "compressed":
        raw = bytearray(path.read_bytes())
        at = raw.rindex(b"PK\x01\x02") + 24
        raw[at : at + 4] = (2**31).to_bytes(4, "little")
        path.write_bytes(raw)
    with pytest.raises(BadCheckpoint, match="archive/data/0"):
        torch_files.archive_storages(path)


def test_a_named_pipe_is_not_opened(tmp_path):
    """Opening a named pipe waits for a writer forever."""
    import os

    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(BadRequest, match="another type"):
        run(tmp_path / "model.gguf", tmp_path / "out")


def test_a_tokenizer_with_its_own_code_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    """transformers asked on stdin whether to run the code of the tokenizer, and ran it on "y"."""
    source = target_folder(tmp_path / "source")
    canary = tmp_path / "canary"
    (source / "evil.py").write_text(f"open({str(canary)!r}, 'w').write('ran')\nclass Evil: pass\n")
    path = source / "tokenizer_config.json"
    table = json.loads(path.read_text())
    table |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    path.write_text(json.dumps(table))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\ny\n"))
    for options in ({}, {"verify": True}, {"recipe": "auto:4.5"}):
        with pytest.raises(UnsupportedModel, match="auto_map"):
            run(source, tmp_path / "out", **options)
    assert not canary.exists()
    assert not (tmp_path / "out").exists()
    assert "y/N" not in capsys.readouterr().out


@pytest.mark.parametrize("value", [5, [1], "x", True, {"target_layer_ids": 3}])
@pytest.mark.parametrize("key", ["target", "draft", "draft_origin"])
def test_a_damaged_card_of_a_converted_pair_is_refused_at_the_start(tmp_path, key, value):
    """A value of the wrong type was met after all weights were written, in a traceback."""
    source = target_folder(tmp_path / "source")
    run(source, tmp_path / "pair", draft=str(draft_folder(tmp_path / "draft")))
    table = json.loads((tmp_path / "pair/pair.json").read_text())
    (tmp_path / "pair/pair.json").write_text(json.dumps({**table, key: value}))
    with pytest.raises(BadCheckpoint, match=r"pair\.json"):
        run(tmp_path / "pair", tmp_path / "out")


@pytest.mark.parametrize("value", [[{}, "full_attention"], [[1], 2], "x", 5])
def test_layer_types_of_a_draft_in_a_pair_are_checked(tmp_path, value):
    """An object in the list was compared as if it were a name."""
    source = target_folder(tmp_path / "source")
    draft = draft_folder(tmp_path / "draft")
    change_config(draft, layer_types=value)
    with pytest.raises(DFlashError, match="layer_types"):
        run(source, tmp_path / "out", draft=str(draft))
