"""The reader of safetensors believes nothing that the file itself does not bear out."""

import json
import struct

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.convert import safetensors
from dflash_mlx.convert.tensors import chunks, read_all, row_count
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from tests.convert.checkpoints import save_numpy

FLOATS = ("F32", (2, 3), np.arange(6, dtype=np.float32).tobytes())


def test_rows_equal_what_mlx_reads(tmp_path):
    """Rows read by position must be those that MLX would have loaded."""
    tensors = {
        "matrix": mx.random.normal((37, 24)).astype(mx.bfloat16),
        "experts": mx.random.normal((3, 5, 8)).astype(mx.float16),
        "vector": mx.random.normal((9,)),
        "scalar": mx.array(3),
        "mask": mx.array([True, False]),
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    read = safetensors.read_folder(tmp_path)
    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        assert mx.array_equal(read_all(read[name]), array)
        rows = read[name]
        pieces = [rows.read(start, stop) for start, stop in chunks(rows, 64)]
        assert np.array_equal(np.concatenate(pieces), rows.read(0, row_count(rows.shape)))


@pytest.mark.parametrize(
    ("dtype", "shape", "raw"),
    [
        ("F32", (2, 3), b"\0" * 20),
        ("F32", (2, -3), b"\0" * 24),
        ("F32", (2, 2.5), b"\0" * 20),
        ("F32", (1 << 62, 1 << 62), b""),
    ],
)
def test_a_shape_that_its_bytes_do_not_bear_out_is_refused(tmp_path, dtype, shape, raw):
    """A header that lies about sizes reads other tensors' bytes, or past the end."""
    save_numpy(tmp_path / "model.safetensors", {"w": (dtype, shape, raw)})
    with pytest.raises(BadCheckpoint, match="'w'"):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize("dtype", ["F64", "F4", "X", 7])
def test_a_type_that_mlx_cannot_hold_is_named(tmp_path, dtype):
    """Half of a conversion later is too late to learn it."""
    save_numpy(tmp_path / "model.safetensors", {"w": (dtype, (1,), b"\0" * 8)})
    with pytest.raises(UnsupportedModel, match="'w'"):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize("length", [1 << 63, 200_000_000, 64])
def test_a_header_longer_than_the_file_is_not_read(tmp_path, length):
    """A hostile length would otherwise be allocated before it is found to be a lie."""
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(BadCheckpoint, match="announces a header"):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{", b'{"w": 3}', b'{"w": {}}', b'{"w": {}, "w": {}}', b"[" * 100_000],
)
def test_a_malformed_header_is_one_line(tmp_path, header):
    """Every parser error is the user's truncated download, not our traceback."""
    raw = struct.pack("<Q", len(header)) + header
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadCheckpoint):
        safetensors.read_folder(tmp_path)


def test_overlapping_tensors_are_refused(tmp_path):
    """Two names for the same bytes are a sign of a forged file."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry | {"data_offsets": [2, 6]}}).encode()
    raw = struct.pack("<Q", len(header)) + header + b"\0" * 6
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadCheckpoint, match="overlap"):
        safetensors.read_folder(tmp_path)


def test_a_truncated_shard_is_named(tmp_path):
    """An interrupted download has a good header and no data."""
    path = tmp_path / "model.safetensors"
    save_numpy(path, {"w": FLOATS})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadCheckpoint, match="is truncated"):
        safetensors.read_folder(tmp_path)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", "a\\b", "C:x", "a\0b", ""]
)
def test_an_index_reaches_nothing_outside_its_folder(tmp_path, name):
    """A checkpoint must not make us read, or name, other files of its user."""
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadCheckpoint, match="Do not trust"):
        safetensors.read_folder(folder)


@pytest.mark.parametrize(
    "table", ["[]", "{}", '{"weight_map": 3}', "{", '{"weight_map": {"w": 3}}']
)
def test_a_malformed_index_is_one_line(tmp_path, table):
    """An index cut short by a download is not a reason for a traceback."""
    (tmp_path / safetensors.INDEX).write_text(table)
    with pytest.raises(BadCheckpoint):
        safetensors.read_folder(tmp_path)


def test_index_and_shards_must_agree(tmp_path):
    """A tensor that is nowhere, or listed nowhere, is a mixture of two checkpoints."""
    save_numpy(tmp_path / "a.safetensors", {"w": FLOATS})
    index = tmp_path / safetensors.INDEX
    index.write_text(json.dumps({"weight_map": {"v": "a.safetensors"}}))
    with pytest.raises(BadCheckpoint, match="'v'"):
        safetensors.read_folder(tmp_path)
    save_numpy(tmp_path / "a.safetensors", {"w": FLOATS, "v": FLOATS})
    with pytest.raises(BadCheckpoint, match="'w'"):
        safetensors.read_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"v": "b.safetensors"}}))
    with pytest.raises(BadCheckpoint, match=r"lacks the shard b\.safetensors"):
        safetensors.read_folder(tmp_path)


def test_several_files_without_an_index_are_not_guessed_at(tmp_path):
    """Half a download looks like this."""
    for name in ("a", "b"):
        save_numpy(tmp_path / f"{name}.safetensors", {"w": FLOATS})
    with pytest.raises(BadCheckpoint, match="and no model"):
        safetensors.read_folder(tmp_path)
