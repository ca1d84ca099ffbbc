"""What a conversion refuses to be asked for."""

import pytest

from dflash_mlx.convert.options import ConvertConfig, Quantization, quantization
from dflash_mlx.errors import BadRequest


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        ((None, None, None), Quantization(4, 64)),
        ((8, None, None), Quantization(8, 64)),
        ((3, 32, "affine"), Quantization(3, 32)),
        ((None, None, "mxfp4"), Quantization(4, 32, "mxfp4")),
        ((8, 32, "mxfp8"), Quantization(8, 32, "mxfp8")),
        ((None, None, "nvfp4"), Quantization(4, 16, "nvfp4")),
    ],
)
def test_flags_mean_one_quantization(flags, meant):
    """A menu's '8-bit' once became 4 bits on the way; the resolved one is what is used."""
    assert quantization(*flags) == meant


@pytest.mark.parametrize(
    "flags",
    [(8, None, "mxfp4"), (None, 64, "mxfp4"), (4, None, "mxfp8"), (None, 32, "nvfp4")],
)
def test_a_mode_that_fixes_the_bits_contradicts_other_bits(flags):
    """Ignoring a contradiction gives a model that the user did not ask for."""
    with pytest.raises(BadRequest, match="leave out --bits and --group-size"):
        quantization(*flags)


@pytest.mark.parametrize("flags", [(7, None, None), (0, None, None), (4, 48, None), (4, 64, "x")])
def test_values_out_of_range_are_named(flags):
    """MLX's own error for these comes after an hour, from inside a kernel."""
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
def test_options_that_cannot_be_honoured_are_refused(options):
    """An option that is accepted and ignored is a bug."""
    with pytest.raises(BadRequest):
        ConvertConfig(source="x", **options)
