"""Safetensors headers: accepted exactly where the reference library accepts them."""

import json
import struct

import mlx.core as mx
import numpy as np
import pytest
import safetensors

from dflash_mlx.convert.safetensors import read_folder
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.loading.safetensors import read_checkpoint
from dflash_mlx.pairs.model_files import INDEX
from tests.convert.checkpoints import save_numpy

FLOATS = ("F32", (2, 3), np.arange(6, dtype=np.float32).tobytes())


@pytest.mark.parametrize(
    ("dtype", "shape", "raw"),
    [
        ("F32", (2, 3), b"\0" * 20),
        ("F32", (2, -3), b"\0" * 24),
        ("F32", (2, 2.5), b"\0" * 20),
        ("F32", (1 << 62, 1 << 62), b""),
    ],
)
def test_a_shape_that_contradicts_its_bytes_is_refused(tmp_path, dtype, shape, raw):
    """A wrong size reads bytes of other tensors, or past the end of the file."""
    save_numpy(tmp_path / "model.safetensors", {"w": (dtype, shape, raw)})
    with pytest.raises((BadCheckpoint, UnsupportedModel), match=r"'w'|negative"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["F64", "F4", "X", 7])
def test_a_type_that_mlx_cannot_hold_is_named(tmp_path, dtype):
    """A conversion failed halfway, and the message named no tensor."""
    save_numpy(tmp_path / "model.safetensors", {"w": (dtype, (1,), b"\0" * 8)})
    with pytest.raises(UnsupportedModel, match="'w'"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("length", [1 << 63, 200_000_000, 64])
def test_a_header_longer_than_the_file_is_not_read(tmp_path, length):
    """A length of 2^63 bytes was allocated before it was compared with the file."""
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(BadCheckpoint, match="announces a header"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        *(b"[]", b"{", b'{"w": 3}', b'{"w": {}}', b'{"w": {}, "w": {}}', b"[" * 100_000),
        *(b'{"\\ud800": 3}', b'{"__metadata__": {"a": "\\ud800"}}', b'{"__metadata__": [1]}'),
    ],
)
def test_a_malformed_header_is_one_line(tmp_path, header):
    """A truncated download gave a traceback."""
    raw = struct.pack("<Q", len(header)) + header
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadCheckpoint):
        read_checkpoint(tmp_path)


def test_overlapping_tensors_are_refused(tmp_path):
    """MLX reads such a file, and one tensor has the values of another."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry | {"data_offsets": [2, 6]}}).encode()
    raw = struct.pack("<Q", len(header)) + header + b"\0" * 6
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(BadCheckpoint, match="overlap"):
        read_checkpoint(tmp_path)


def test_a_truncated_shard_is_named(tmp_path):
    """An interrupted download has a complete header and lacks data."""
    path = tmp_path / "model.safetensors"
    save_numpy(path, {"w": FLOATS})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadCheckpoint, match="is truncated"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "..", "a\\b", "C:x", "a\0b", ""]
)
def test_an_index_reaches_nothing_outside_its_folder(tmp_path, name):
    """An index with such a name reads files outside the model folder."""
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadCheckpoint, match="Do not trust"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "table", ["[]", "{}", '{"weight_map": 3}', "{", '{"weight_map": {"w": 3}}']
)
def test_a_malformed_index_is_one_line(tmp_path, table):
    """A truncated index gave a traceback."""
    (tmp_path / INDEX).write_text(table)
    with pytest.raises(BadCheckpoint):
        read_checkpoint(tmp_path)


def test_index_and_shards_must_agree(tmp_path):
    """Files of two checkpoints in one folder gave a model with weights of both."""
    save_numpy(tmp_path / "a.safetensors", {"w": FLOATS})
    index = tmp_path / INDEX
    index.write_text(json.dumps({"weight_map": {"v": "a.safetensors"}}))
    with pytest.raises(BadCheckpoint, match="'v'"):
        read_checkpoint(tmp_path)
    save_numpy(tmp_path / "a.safetensors", {"w": FLOATS, "v": FLOATS})
    with pytest.raises(BadCheckpoint, match="'w'"):
        read_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"v": "b.safetensors"}}))
    with pytest.raises(BadCheckpoint, match=r"lacks the weight files b\.safetensors"):
        read_checkpoint(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path):
    """A folder with half of a download loads a model that lacks weights."""
    for name in ("a", "b"):
        save_numpy(tmp_path / f"{name}.safetensors", {"w": FLOATS})
    with pytest.raises(BadCheckpoint, match="and no model"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"w": [-4, 0]}, {"w": [0, 3]}, {"v": [20, 28]}, {"v": [28, 36]}, {"w": [4, 28], "v": [0, 24]}],
)
def test_shifted_tensors_are_refused_as_the_reference_library_does(tmp_path, changes):
    """MLX reads such a file, and the text is that of other weights."""
    header = {
        "w": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]},
        "v": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
    }
    for name, offsets in changes.items():
        header[name]["data_offsets"] = offsets
    text = json.dumps(header).encode()
    raw = struct.pack("<Q", len(text)) + text + b"\0" * 36
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(raw)
    with pytest.raises(BadCheckpoint):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0"])
def test_types_of_scaled_8_bit_weights_are_read(tmp_path, dtype):
    """MXFP8 scales, which MLX holds as bytes, were refused."""
    save_numpy(tmp_path / "model.safetensors", {"w": (dtype, (2, 2), b"\1\2\3\4")})
    ((entry,),) = [list(file.values()) for file in read_checkpoint(tmp_path).values()]
    assert (entry.dtype, entry.shape, entry.n_bytes) == (dtype, (2, 2), 4)
    loaded = mx.load(str(tmp_path / "model.safetensors"))["w"]
    assert loaded.tolist() == [[1, 2], [3, 4]]
    rows = read_folder(tmp_path)["w"]
    assert rows.read(0, 2).tolist() == [[1, 2], [3, 4]]
