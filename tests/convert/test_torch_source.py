"""PyTorch checkpoints are read as weights only, or not at all."""

import json
import pickle
import sys

import mlx.core as mx
import pytest

from dflash_mlx.convert import torch_source
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from tests.convert.checkpoints import (
    DRAFT_CONFIG,
    draft_folder,
    draft_weights,
    run,
    same,
    weights_of,
)


class Hostile:
    """Unpickling this would run a function."""

    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


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


def test_weights_equal_those_of_the_safetensors_build(tmp_path):
    """bfloat16 has no NumPy type; a detour through float16 would lose bits."""
    torch = pytest.importorskip("torch")
    run(bin_folder(tmp_path / "bin", torch), tmp_path / "a", dequantize=True)
    run(draft_folder(tmp_path / "safe"), tmp_path / "b", dequantize=True)
    assert same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b")) == []


def test_a_pickle_is_never_executed(tmp_path):
    """Loading a stranger's pickle is running a stranger's program."""
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Hostile()}))
    with pytest.raises(BadCheckpoint, match="never run"):
        run(tmp_path, tmp_path.with_name("out"))


def test_without_torch_the_way_on_is_named_and_nothing_is_unpickled(tmp_path, monkeypatch):
    """Python's own pickle would be an easy and unsafe way out."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Hostile()}))
    with pytest.raises(UnsupportedModel, match=r"dflash-mlx\[torch\]"):
        run(tmp_path, tmp_path.with_name("out"))


@pytest.mark.parametrize("name", ["../pytorch_model.bin", "/etc/passwd", ".."])
def test_an_index_reaches_nothing_outside_its_folder(tmp_path, name):
    """A checkpoint must not make us open other files of its user."""
    (tmp_path / torch_source.INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadCheckpoint, match="Do not trust"):
        torch_source.read_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    """Half a download is the commonest broken checkpoint."""
    (tmp_path / torch_source.INDEX).write_text('{"weight_map": {"w": "a.bin"}}')
    with pytest.raises(BadCheckpoint, match=r"lacks the shard a\.bin"):
        torch_source.read_folder(tmp_path)
