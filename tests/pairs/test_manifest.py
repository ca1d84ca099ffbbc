"""`pair.json` and the list of converted folders: damaged files are one line."""

import json

import pytest

from dflash_mlx.errors import BadCheckpoint, PairMismatch
from dflash_mlx.pairs.converted import converted, remember
from dflash_mlx.pairs.manifest import FILE, Manifest, Origin, TargetFacts

TARGET = TargetFacts("qwen3", 64, 2, 300, "a" * 64)
MANIFEST = Manifest(TARGET, Origin("org/a", bits={"mlp": 4.5}, shards={"m": "h"}), thinking=False)


def table(tmp_path):
    MANIFEST.write(tmp_path)
    return json.loads((tmp_path / FILE).read_text())


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    """Every field must survive the file."""
    MANIFEST.write(tmp_path)
    assert Manifest.read(tmp_path) == MANIFEST
    assert Manifest.read(tmp_path / "none") is None


@pytest.mark.parametrize(
    "change",
    [
        {"target": 5},
        {"target": {"architecture": "x"}},
        {"target_origin": {"source": 3}},
        {"target_origin": {"source": "x", "bits": {"mlp": "four"}}},
        {"target_origin": {"source": "x", "colour": "red"}},
        {"draft": {"hidden_size": "wide"}},
        {"thinking": "yes"},
        {"format": None},
        {"format": [1] * 5000},
    ],
)
def test_a_manifest_with_a_wrong_value_is_one_line(tmp_path, change):
    """`"target": 5` ended in a traceback, and a long value filled the terminal."""
    (tmp_path / FILE).write_text(json.dumps({**table(tmp_path), **change}))
    with pytest.raises(BadCheckpoint) as caught:
        Manifest.read(tmp_path)
    assert FILE in str(caught.value)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 200_000, "null", '{"format": 1}'])
def test_a_manifest_that_is_not_one_is_one_line(tmp_path, text):
    """Deep nesting ended in a RecursionError."""
    (tmp_path / FILE).write_text(text)
    with pytest.raises(BadCheckpoint) as caught:
        Manifest.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_mismatch_names_both_values(tmp_path):
    """Files of two conversions in one folder must not run together."""
    other = TargetFacts("qwen3", 128, 2, 300, "a" * 64)
    with pytest.raises(PairMismatch, match=r"hidden_size 64 for its target.*have 128"):
        MANIFEST.check(other, None, "folder")


@pytest.mark.parametrize("text", ["[" * 200_000, "5", "{}", '["a", 3]', "\x00"])
def test_a_damaged_list_of_folders_is_set_aside_with_one_line(tmp_path, text):
    """A damaged list ended `dflash-mlx models` in a traceback."""
    (tmp_path / "converted.json").write_text(text)
    notices = []
    assert converted(tmp_path, notices.append) == ()
    assert len(notices) == 1 and "converted.json.damaged" in notices[0]
    remember(tmp_path / "out", tmp_path)
    assert json.loads((tmp_path / "converted.json").read_text()) == [str(tmp_path / "out")]
