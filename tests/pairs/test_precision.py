"""The precision that is chosen for every known pair on every Mac, and for odd requests."""

from dataclasses import replace

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.precision import (
    PrecisionConfig,
    PrecisionDecision,
    PrecisionRefusal,
    decide,
)
from dflash_mlx.pairs.shapes import PairShape, facts_of, shapes
from dflash_mlx.system.chips import all_macs, read_mac

FACTS = {
    card.nickname: facts
    for card in registry.cards()
    if not isinstance(facts := facts_of(card, shapes().get(card.nickname)), str)
}
CONFIGS = [
    PrecisionConfig(),
    PrecisionConfig(bits=4),
    PrecisionConfig(bits=8, draft_bits=4),
    PrecisionConfig(bits=16),
    PrecisionConfig(draft_bits=16),
    PrecisionConfig(context=1000),
    PrecisionConfig(context=32768),
]


@pytest.mark.parametrize("nickname", FACTS)
def test_every_choice_fits_and_keeps_to_the_request(nickname):
    """A choice that does not fit ends in swapping; one that ignores an option misleads."""
    facts = FACTS[nickname]
    for mac in all_macs():
        for config in CONFIGS:
            found = decide(facts, mac.chip, mac.usable_bytes, config)
            if isinstance(found, PrecisionRefusal):
                continue
            assert found.total_bytes <= mac.usable_bytes, (mac.name, config)
            assert config.bits in ("auto", found.bits)
            assert config.draft_bits in ("auto", found.draft_bits)
            assert found.context == config.context or config.context is None
            assert found.context <= found.longest_context <= facts.shape.context_length


@pytest.mark.parametrize("nickname", FACTS)
def test_every_refusal_names_a_change_that_helps(nickname):
    """A refusal without a way out, or with one that is refused again, helps nobody."""
    facts = FACTS[nickname]
    for mac in all_macs():
        for config in CONFIGS:
            found = decide(facts, mac.chip, mac.usable_bytes, config)
            if isinstance(found, PrecisionDecision):
                continue
            for remedy in found.remedies:
                changed = applied(remedy, config)
                again = decide(facts, mac.chip, mac.usable_bytes, changed)
                assert isinstance(again, PrecisionDecision), (mac.name, config, remedy)
            if not found.remedies:  # then nothing at all fits
                floor = PrecisionConfig(draft_bits=4, context=2048)
                again = decide(facts, mac.chip, mac.usable_bytes, floor)
                assert isinstance(again, PrecisionRefusal), (mac.name, config)


def applied(remedy, config):
    """Return `config` with the options of a remedy."""
    if remedy.startswith("--bits auto"):
        return PrecisionConfig()
    words = remedy.split()
    names = {"--bits": "bits", "--draft-bits": "draft_bits", "--context": "context"}
    pairs = zip(words[::2], words[1::2], strict=True)
    return replace(config, **{names[option]: int(value) for option, value in pairs})


@pytest.mark.parametrize("nickname", FACTS)
def test_more_memory_never_gives_fewer_bits_or_less_context(nickname):
    """A larger Mac with the same chip must not get a worse answer."""
    facts, chip = FACTS[nickname], read_mac("M2 Max 64GB").chip
    last = None
    for gigabytes in range(2, 300, 3):
        found = decide(facts, chip, gigabytes * 10**9, PrecisionConfig())
        if isinstance(found, PrecisionDecision):
            if last is not None:
                assert (found.bits, found.context) >= (last.bits, last.context)
            last = found
        else:
            assert last is None
    assert last is not None


def test_a_bandwidth_bound_chip_takes_the_floor_and_an_arithmetic_bound_one_more_bits():
    """Reading weights limits an M5, whose matrix units are fast; arithmetic limits an M1 Max."""
    facts = FACTS["qwen3-8b"]
    bits = {}
    for name in ("M1 Max 64GB", "M5 Max 64GB", "M2 24GB"):
        mac = read_mac(name)
        found = decide(facts, mac.chip, mac.usable_bytes, PrecisionConfig())
        bits[name] = found.bits
    assert bits == {"M1 Max 64GB": 8, "M5 Max 64GB": 4, "M2 24GB": 4}


def test_an_unknown_chip_takes_the_floor():
    """Without bandwidth and arithmetic nothing speaks for more bits."""
    found = decide(FACTS["qwen3-8b"], None, 10**12, PrecisionConfig())
    assert (found.bits, found.speedup) == (4, None)


def test_the_speedup_is_tau_over_v_plus_d():
    """The formula by hand, for a pair that reads all its weights."""
    facts, mac = FACTS["qwen3-8b"], read_mac("M4 Max 64GB")
    found = decide(facts, mac.chip, mac.usable_bytes, PrecisionConfig(bits=4, draft_bits=8))
    rows = 4.5 / 8 * 18.4e12 / (2 * 546e9)
    expected = 4.24 / (16 / rows + found.draft_bytes / found.target_bytes)
    assert found.speedup[0] == pytest.approx(expected)
    assert found.target_bytes == 8_000_000_000 * 4.5 / 8


def test_a_context_beyond_the_models_length_is_refused():
    """Memory for rows that the model cannot use is wasted."""
    found = decide(FACTS["qwen3-8b"], None, 10**12, PrecisionConfig(context=50_000))
    assert found.remedies == ("--context 40960",)


@pytest.mark.parametrize(
    "values", [{"bits": 7}, {"bits": "4"}, {"draft_bits": 5}, {"context": 0}, {"context": -1}]
)
def test_impossible_values_are_refused(values):
    """`--bits 7` must not become 8."""
    with pytest.raises(BadRequest, match="needs"):
        PrecisionConfig(**values)


@pytest.mark.parametrize(
    ("shape", "n_tokens", "n_bytes"),
    [
        (PairShape(9, "", full_layers=2, kv_heads=3, head_size=4), 10, 2 * 2 * 3 * 4 * 2 * 10),
        (PairShape(9, "", window_layers=2, window=4, kv_heads=1, head_size=1), 10, 32),
        (PairShape(9, "", latent_row_bytes=100), 10, 1000),
        (PairShape(9, "", state_bytes=77), 10, 77),
        (PairShape(9, "", draft_full_layers=1, draft_kv_heads=2, draft_head_size=3), 10, 240),
    ],
)
def test_caches_of_every_kind_are_counted(shape, n_tokens, n_bytes):
    """Windows and states do not grow with the context, latent rows are narrow."""
    assert shape.cache_bytes(n_tokens) == n_bytes


def test_shapes_belong_to_known_pairs_and_name_their_source():
    """A misspelled nickname in the data would be ignored."""
    known = {card.nickname for card in registry.cards()}
    assert shapes().keys() <= known
    assert all(shape.source for shape in shapes().values())
    assert all(shape.tokens_source for shape in shapes().values() if shape.tokens_per_round)


def test_a_pair_without_recorded_sizes_has_a_reason():
    """An unknown size must not be guessed."""
    card = registry.find("gemma-4-31b")
    assert "not recorded" in facts_of(card, None)
    assert "target" in facts_of(replace(card, parameters=None), PairShape(9, ""))
    assert "draft" in facts_of(replace(card, draft_bytes=None), PairShape(9, ""))
