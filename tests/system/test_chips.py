"""Apple chips and the memory that Metal may use."""

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.chips import CHIPS, GIB, all_macs, find_chip, read_mac


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("M2 16GB", "M2 16GB"),
        ("m4 max 64", "M4 Max 64GB"),
        ("Apple M3 Ultra 512 GB", "M3 Ultra 512GB"),
        ("M1 12GB", "M1 12GB"),
    ],
)
def test_a_description_is_read(text, name):
    """A size that is not sold can be asked about too."""
    assert read_mac(text).name == name


@pytest.mark.parametrize("text", ["", "M2", "16GB", "M9 16GB", "M2 Turbo 16GB", "M2 0GB", "M2 -1"])
def test_a_description_that_is_not_a_mac_is_refused(text):
    """A mistyped chip must not give the answer of another one."""
    with pytest.raises(BadRequest, match="--as"):
        read_mac(text)


@pytest.mark.parametrize(
    ("memory", "mib"), [(8, 5461), (16, 10922), (32, 21845), (36, 27648), (64, 49152), (128, 98304)]
)
def test_usable_memory_is_what_metal_recommends(memory, mib):
    """Two thirds up to 32 GiB and three quarters above; llama.cpp logs these values."""
    assert read_mac(f"M1 {memory}GB").usable_bytes // 2**20 == mib


def test_every_mac_can_be_asked_for_by_its_name():
    """The names of `--as list` must work."""
    for mac in all_macs():
        assert read_mac(mac.name) == mac
    assert all_macs()[0].name == "M1 8GB"
    assert all_macs()[-1].name == "M5 Ultra 512GB"


def test_of_two_bandwidths_the_one_of_the_memory_size_is_used():
    """M4 Max with 36 GB has the smaller GPU and three quarters of the bandwidth."""
    assert find_chip("Apple M4 Max", 36).bandwidth < find_chip("M4 Max", 64).bandwidth
    assert find_chip("M4 Max").bandwidth == find_chip("M4 Max", 36).bandwidth
    assert find_chip("Apple M99") is None
    assert all(chip.flops > 0 and chip.memory_gib for chip in CHIPS)
    assert read_mac("M2 16GB").memory_bytes == 16 * GIB
