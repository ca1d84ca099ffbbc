"""Options that a conversion refuses."""

import pytest

from dflash_mlx.convert.options import ConvertConfig, Quantization, quantization
from dflash_mlx.errors import BadRequest


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((None, None, None), Quantization(4, 64)),
        ((8, None, None), Quantization(8, 64)),
        ((3, 32, "affine"), Quantization(3, 32)),
        ((None, None, "mxfp4"), Quantization(4, 32, "mxfp4")),
        ((8, 32, "mxfp8"), Quantization(8, 32, "mxfp8")),
        ((None, None, "nvfp4"), Quantization(4, 16, "nvfp4")),
    ],
)
def test_options_resolve_to_one_quantization(flags, expected):
    """8 bits were requested once and 4 were used; the resolved value must be the requested one."""
    assert quantization(*flags) == expected


@pytest.mark.parametrize(
    "flags",
    [(8, None, "mxfp4"), (None, 64, "mxfp4"), (4, None, "mxfp8"), (None, 32, "nvfp4")],
)
def test_fixed_modes_refuse_other_bits(flags):
    """An ignored contradiction gives a model that was not requested."""
    with pytest.raises(BadRequest, match="leave out --bits and --group-size"):
        quantization(*flags)


@pytest.mark.parametrize("flags", [(7, None, None), (0, None, None), (4, 48, None), (4, 64, "x")])
def test_values_out_of_range_are_refused(flags):
    """MLX reports these values only inside a kernel, late in the conversion."""
    with pytest.raises(BadRequest, match="needs one of"):
        quantization(*flags)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "mxfp4", "recipe": "head8"},
        {"dtype": "int8"},
        {"draft_revision": "abc"},
        {"shard_bytes": 0},
    ],
)
def test_contradicting_options_are_refused(options):
    """An accepted option was ignored."""
    with pytest.raises(BadRequest):
        ConvertConfig(source="x", **options)
