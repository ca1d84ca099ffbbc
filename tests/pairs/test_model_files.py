"""Which files a model folder needs: the index decides, and code is refused by name."""

import json

import pytest

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.pairs.model_files import check_folder, is_complete, missing_files

TARGET = {"model_type": "qwen3"}
DRAFT = {"architectures": ["DFlashDraftModel"], "dflash_config": {}}
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def folder(tmp_path, names, config=TARGET, index=None):
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in names:
        (tmp_path / name).write_text("{}")
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "config", "index", "missing"),
    [
        (["model.safetensors", "tokenizer.json"], TARGET, None, []),
        (["model.safetensors", "vocab.json", "merges.txt"], TARGET, None, []),
        (["model.safetensors", "tokenizer.model"], TARGET, None, []),
        (["model.safetensors"], TARGET, None, ["tokenizer.json"]),
        (["model.safetensors"], DRAFT, None, []),
        (["tokenizer.json"], TARGET, None, ["model.safetensors"]),
        ([*SHARDS[:2], "tokenizer.json"], TARGET, None, SHARDS[2:]),
        ([*SHARDS[:2], "tokenizer.json"], TARGET, {"weight_map": {"a": SHARDS[1]}}, []),
        (["model.safetensors", "tokenizer.json"], TARGET, {"weight_map": {"a": "b.safetensors"}},
         ["b.safetensors"]),
    ],
)  # fmt: skip
def test_missing_files_are_named(tmp_path, names, config, index, missing):
    """A folder without tokenizer or with half of its shards counted as complete."""
    assert missing_files(folder(tmp_path, names, config, index)) == missing


@pytest.mark.parametrize(
    "index",
    [
        {},
        [],
        {"weight_map": {}},
        {"weight_map": 5},
        {"weight_map": {"a": None}},
        {"weight_map": {"a": "x" * 5000 + ".safetensors"}},
        {"weight_map": {"a": "../../etc/passwd"}},
    ],
)
def test_a_damaged_index_is_one_line_and_incomplete(tmp_path, index):
    """A null or a name of 5,000 characters in the index ended in a traceback."""
    damaged = folder(tmp_path, ["model.safetensors", "tokenizer.json"], index=index)
    with pytest.raises(BadCheckpoint) as caught:
        missing_files(damaged)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)
    assert not is_complete(damaged)


def test_tokenizer_code_matters_for_targets_only(tmp_path):
    """A draft's tokenizer is never read, so its code does not matter."""
    files = folder(tmp_path, ["model.safetensors", "tokenizer.json"])
    (files / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x.Y"}}')
    with pytest.raises(UnsupportedModel, match="auto_map"):
        check_folder(files)
    (files / "config.json").write_text(json.dumps(DRAFT))
    check_folder(files)


@pytest.mark.parametrize("model_type", ["../../x", "x" * 5000, 5, None])
def test_an_odd_model_type_with_code_is_refused(tmp_path, model_type):
    """A long model type became a file name and ended in a traceback."""
    config = {"model_type": model_type, "auto_map": {"AutoModel": "x.Y"}}
    with pytest.raises(UnsupportedModel, match="Python code"):
        check_folder(folder(tmp_path, [], config))


@pytest.mark.parametrize("architectures", [5, True, [1], {"a": 1}])
def test_odd_architectures_are_left_to_the_loader(tmp_path, architectures):
    """A number in `architectures` ended in a traceback before any check named it."""
    check_folder(folder(tmp_path, [], {**TARGET, "architectures": architectures}))
