"""PyTorch checkpoints are read as weights only, or refused."""

import json
import pickle
import sys

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.convert.sources import torch_files
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from tests.convert.checkpoints import (
    DRAFT_CONFIG,
    draft_folder,
    draft_weights,
    run,
    same,
    target_folder,
    weights_of,
)


class Hostile:
    """Unpickling this object runs a function."""

    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch is not installed, and CI leaves it out")


def as_torch(array, torch):
    """The same bits as a torch tensor."""
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def save_bins(folder, state, torch, n_files=1):
    """Save a state dict as `pytorch_model.bin`, or in several files with their index."""
    names = list(state)
    if n_files == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    table = {}
    for number in range(n_files):
        file = f"pytorch_model-{number + 1:05d}-of-{n_files:05d}.bin"
        part = names[number::n_files]
        torch.save({name: state[name] for name in part}, folder / file)
        table |= dict.fromkeys(part, file)
    (folder / torch_files.INDEX).write_text(json.dumps({"weight_map": table}))


def target_as_bins(folder, dtype, torch, family="llama", n_files=1):
    """A target with its weights in `dtype`, and the same one as torch saves it."""
    safe = target_folder(folder / "safe", family, torch_dtype=dtype)
    weights = weights_of(safe)
    weights = {name: array.astype(getattr(mx, dtype)) for name, array in weights.items()}
    mx.save_safetensors(str(safe / "model.safetensors"), weights)
    bins = target_folder(folder / "bin", family, torch_dtype=dtype)
    (bins / "model.safetensors").unlink()
    state = {name: as_torch(array, torch) for name, array in weights.items()}
    save_bins(bins, state, torch, n_files)
    return safe, bins


def bin_folder(folder, torch):
    """A draft saved as PyTorch saves it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    state = {
        name: torch.tensor(array.astype(mx.float32).tolist()).to(torch.bfloat16)
        for name, array in draft_weights().items()
    }
    torch.save(state, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("family", "n_files"), [("llama", 1), ("qwen3", 3)])
def test_torch_files_convert_like_the_safetensors_build(tmp_path, torch, dtype, family, n_files):
    """The PyTorch and safetensors builds of one model must convert to the same bytes."""
    safe, bins = target_as_bins(tmp_path, dtype, torch, family, n_files)
    run(bins, tmp_path / "a", dequantize=True)
    assert same(weights_of(tmp_path / "a"), weights_of(safe)) == []
    run(bins, tmp_path / "b", bits=4)
    run(safe, tmp_path / "c", bits=4)
    assert same(weights_of(tmp_path / "b"), weights_of(tmp_path / "c")) == []


def test_a_file_given_by_name_is_read(tmp_path, torch):
    """A folder with two builds converted the other one."""
    safe, bins = target_as_bins(tmp_path, "float16", torch)
    run(safe, tmp_path / "expected", bits=4)
    (bins / "pytorch_model.bin").rename(safe / "other.pt")
    (safe / "model.safetensors").write_bytes(b"not this one")
    run(safe / "other.pt", tmp_path / "out", bits=4)
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "expected")) == []


def test_parameters_views_and_shared_tensors_are_read_by_value(tmp_path, torch):
    """Parameters, transposed views and shared tensors must convert to their values."""
    weights = draft_weights()
    state = {name: as_torch(array, torch) for name, array in weights.items()}
    state["fc.weight"] = torch.nn.Parameter(state["fc.weight"])
    name = "layers.0.mlp.up_proj.weight"
    state[name] = state[name].T.contiguous().T
    state["layers.1.input_layernorm.weight"] = state["layers.0.input_layernorm.weight"]
    weights["layers.1.input_layernorm.weight"] = weights["layers.0.input_layernorm.weight"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/config.json").write_text(json.dumps(DRAFT_CONFIG))
    save_bins(tmp_path / "bin", {"state_dict": state}, torch)
    run(tmp_path / "bin", tmp_path / "out", dequantize=True)
    assert same(weights_of(tmp_path / "out"), weights) == []


def test_files_from_before_torch_1_6_are_named(tmp_path, torch):
    """These files cannot be read by row range; the error must not call them truncated."""
    bin_folder(tmp_path / "bin", torch)
    state = torch.load(tmp_path / "bin/pytorch_model.bin", weights_only=True)
    torch.save(state, tmp_path / "bin/pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(BadCheckpoint, match=r"before torch 1\.6"):
        run(tmp_path / "bin", tmp_path / "out")


def test_a_truncated_file_is_named(tmp_path, torch):
    """An incomplete download must be named."""
    folder = bin_folder(tmp_path / "bin", torch)
    raw = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin.*truncated"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_equal_those_of_the_safetensors_build(tmp_path, torch):
    """NumPy has no bfloat16; a conversion to float16 loses bits."""
    run(bin_folder(tmp_path / "bin", torch), tmp_path / "a", dequantize=True)
    run(draft_folder(tmp_path / "safe"), tmp_path / "b", dequantize=True)
    assert same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b")) == []


def test_a_pickle_is_never_executed(tmp_path, torch):
    """A pickle can run any program."""
    (tmp_path / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    for save in (pickle.dump, torch.save):
        with (tmp_path / "pytorch_model.bin").open("wb") as file:
            save({"w": Hostile()}, file)
        with pytest.raises(BadCheckpoint, match="never run"):
            run(tmp_path, tmp_path.with_name("out"))


def test_without_torch_the_file_is_refused_and_not_unpickled(tmp_path, monkeypatch):
    """Without torch, the file must not be read with Python's pickle."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Hostile()}))
    with pytest.raises(UnsupportedModel, match=r"install.* 'torch>=2\.4'"):
        run(tmp_path, tmp_path.with_name("out"))


@pytest.mark.parametrize("name", ["../pytorch_model.bin", "/etc/passwd", ".."])
def test_an_index_cannot_name_files_outside_its_folder(tmp_path, name):
    """An index must not open other files of the user."""
    (tmp_path / torch_files.INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadCheckpoint, match="Do not trust"):
        torch_files.read_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    """An incomplete download must be named."""
    (tmp_path / torch_files.INDEX).write_text('{"weight_map": {"w": "a.bin"}}')
    with pytest.raises(BadCheckpoint, match=r"lacks the shard a\.bin"):
        torch_files.read_folder(tmp_path)
