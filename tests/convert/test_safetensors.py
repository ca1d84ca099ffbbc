"""Row ranges of safetensors files are the rows that MLX loads."""

import mlx.core as mx
import numpy as np

from dflash_mlx.convert import safetensors
from dflash_mlx.convert.tensors import chunks, read_all, row_count


def test_rows_equal_those_of_mlx(tmp_path):
    """Rows read by position must equal the rows that MLX loads."""
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
