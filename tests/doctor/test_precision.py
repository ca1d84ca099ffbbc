"""Findings about the precision of a known pair on a Mac."""

from contextlib import suppress

import pytest

from dflash_mlx.doctor.precision import check_precision, describe_pair
from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.builds import (
    build_with_bits,
    choose_build,
    largest_that_fits,
    precision_of,
)
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.precision import PrecisionConfig, PrecisionDecision, PrecisionRefusal
from dflash_mlx.system.chips import all_macs, read_mac

AUTO = PrecisionConfig()


def findings(nickname, mac, config=AUTO):
    facts = {}
    described = read_mac(mac)
    found = check_precision(
        registry.find(nickname), described.chip, described.usable_bytes, config, facts
    )
    return {finding.subject: finding for finding in found}, facts


def test_a_pair_that_fits_has_its_bytes_its_speed_and_its_source():
    """A user must see what a download is for before it starts."""
    found, facts = findings("qwen3-4b", "M2 Pro 32GB")
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "override with --bits" in found["precision"].text
    assert "computed, not measured" in found["speed"].text and "tau" in found["speed"].text
    assert "DFlash paper" in found["speed"].text
    assert "--model mlx-community/Qwen3-4B-8bit" in found["source"].text
    assert facts["precision"]["bits"] == 8


def test_a_pair_that_does_not_fit_must_change():
    """The smallest change that helps is named."""
    found, _ = findings("qwen3-4b", "M2 8GB", PrecisionConfig(bits=16))
    assert found["precision"].level == "must"
    assert found["precision"].remedy == "--bits 4"
    found, _ = findings("qwen3.5-122b-a10b", "M2 16GB")
    assert found["precision"].remedy.startswith("--model qwen")


def test_a_pair_of_unknown_size_is_advice():
    """An unknown size must not be guessed, and is not a fault of the machine."""
    found, _ = findings("gemma-4-31b", "M2 16GB")
    assert found["precision"].level == "advice"
    assert "not recorded" in found["precision"].text


@pytest.mark.parametrize("mac", all_macs(), ids=lambda mac: mac.name)
def test_every_pair_has_an_answer_on_every_mac(mac):
    """A refusal names a change of an option or a pair that fits."""
    for card in registry.cards():
        found = precision_of(card, mac.chip, mac.usable_bytes, AUTO)
        if isinstance(found, PrecisionDecision):
            assert found.total_bytes <= mac.usable_bytes
        elif not found.undecided:
            assert found.remedies
            named = registry.find(found.remedies[0].removeprefix("--model "))
            if named is not None:
                other = precision_of(named, mac.chip, mac.usable_bytes, AUTO)
                assert isinstance(other, PrecisionDecision)
        assert describe_pair(card, mac.chip, mac.usable_bytes, AUTO).startswith(card.nickname)


def test_where_nothing_fits_nothing_is_named():
    """The remedy was a pair that does not fit either."""
    assert largest_that_fits(None, 10**6) is None
    found = precision_of(registry.find("qwen3-4b"), None, 10**6, AUTO)
    assert isinstance(found, PrecisionRefusal) and found.remedies == ()


def test_builds_are_found_by_their_bits():
    """A 4-bit choice must not lead to an 8-bit repository."""
    card = registry.find("qwen3-4b")
    assert build_with_bits(card, 16) == card.target
    assert build_with_bits(card, 4) == "mlx-community/Qwen3-4B-4bit"
    assert build_with_bits(card, 5) is None
    published = registry.find("gpt-oss-20b")
    assert build_with_bits(published, 4) == published.target
    assert build_with_bits(published, 16) is None


def chosen(nickname, mac, bits="auto", here=()):
    described = read_mac(mac)
    config = PrecisionConfig(bits=bits)
    card = registry.find(nickname)
    return choose_build(
        card, described.chip, described.usable_bytes, config, lambda name: name in here
    )


def test_the_build_that_fits_is_loaded():
    """A nickname downloaded 16 GB of bfloat16 to a Mac with 16 GB of memory."""
    build, text = chosen("qwen3-8b", "M2 16GB")
    assert build == "mlx-community/Qwen3-8B-4bit"
    assert "target 4 bits" in text and "--bits" in text
    assert chosen("qwen3-4b", "M2 Max 64GB")[0] == "mlx-community/Qwen3-4B-8bit"


def test_a_build_on_the_disk_comes_first():
    """Another build was downloaded although one that fits was there."""
    card = registry.find("qwen3-8b")
    assert chosen("qwen3-8b", "M2 Max 64GB", here=[card.target])[0] == card.target
    too_large = chosen("qwen3-8b", "M2 16GB", here=[card.target])
    assert too_large[0] == "mlx-community/Qwen3-8B-4bit"


def test_requested_bits_are_kept_or_refused():
    """`--bits 5` must not load 4 bits."""
    assert chosen("qwen3-8b", "M2 Max 64GB", 16)[0] == "Qwen/Qwen3-8B"
    with pytest.raises(BadRequest, match=r"no build of qwen3-8b with 5 bits.*convert"):
        chosen("qwen3-8b", "M2 Max 64GB", 5)
    with pytest.raises(BadRequest, match=r"does not fit.*--bits 4"):
        chosen("qwen3-8b", "M2 16GB", 16)


def test_a_pair_of_unknown_size_is_loaded_as_before():
    """Without recorded sizes the original is loaded."""
    assert chosen("gemma-4-31b", "M2 Max 64GB") is None


@pytest.mark.parametrize("mac", all_macs()[::5], ids=lambda mac: mac.name)
def test_every_chosen_build_is_published(mac):
    """A build that is not published cannot be loaded."""
    n_chosen = 0
    for card in registry.cards():
        with suppress(BadRequest):
            found = chosen(card.nickname, mac.name)
            assert found is None or found[0] in (card.target, *card.targets)
            n_chosen += found is not None
    assert n_chosen > 0
