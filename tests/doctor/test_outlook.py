"""Findings about block size auto: the costs, the first block size and the reason."""

import mlx.core as mx
import pytest

from dflash_mlx.controller.cost_store import CostStore, LearnedCosts
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.doctor.combinations import check_combination
from dflash_mlx.doctor.outlook import check_auto, plot
from dflash_mlx.engine.measured_costs import cost_key, save_costs, with_costs
from dflash_mlx.loading.compute import Compute
from dflash_mlx.models.pair import Pair
from tests.controller.counts import counts_of
from tests.tiny import loaded_pair, random_draft

CURVE = CostCurve((1, 8), (0,), ((0.010, 0.020),))


@pytest.fixture
def loaded(target):
    """Return a loaded tiny pair without stored costs."""
    return loaded_pair(Pair(target, random_draft(target)))


def _texts(loaded, store, facts=None):
    found = check_auto(loaded, 100, {} if facts is None else facts, store)
    return [finding.text for finding in found]


def test_without_costs_it_states_when_they_are_measured(loaded, tmp_path):
    """Without costs the output was empty."""
    assert "measured when" in _texts(loaded, CostStore(tmp_path))[0]


def test_costs_are_shown_with_the_choice_and_its_reason(loaded, tmp_path):
    """A user must see which block size is used and why."""
    store, facts = CostStore(tmp_path), {}
    store.save(cost_key(loaded), LearnedCosts(CURVE, counts_of(*[0.9] * 7)))
    costs, choice = _texts(loaded, store, facts)
    assert "█" in costs and "8: 2.0" in costs
    assert "block size 8" in choice and "speedup" in choice
    assert facts["auto"]["block_size"] == 8 and len(facts["costs"]) == 8


def test_a_slow_draft_starts_with_plain_decoding(loaded, tmp_path):
    """The reason for disabled speculation must be stated."""
    store = CostStore(tmp_path)
    store.save(cost_key(loaded), LearnedCosts(CURVE, counts_of(*[0.05] * 7)))
    assert "starts with plain decoding" in _texts(loaded, store)[1]


def test_a_pair_is_measured_once(loaded, tmp_path):
    """Costs were measured again at every start, which takes two seconds."""
    store, said = CostStore(tmp_path), []
    measured = with_costs(loaded, said.append, store)
    assert any("measuring" in word for word in said)
    assert measured.tuning.costs.curve.block_sizes[0] == 1
    again, said = loaded, []
    assert with_costs(again, said.append, store).tuning.costs.curve is not None
    assert said == []
    assert save_costs(measured, store) is None


def test_a_pair_without_a_draft_needs_no_costs(target, tmp_path):
    """Without a draft there is no block size to choose."""
    alone = loaded_pair(Pair(target))
    assert with_costs(alone, lambda text: None, CostStore(tmp_path)).tuning is None
    assert list(check_auto(alone, 100, {}, CostStore(tmp_path))) == []


def test_the_plot_of_equal_costs_does_not_divide_by_zero():
    """Equal costs divided by zero."""
    assert plot([1.0, 1.0]).startswith("block size 1: 1.0")


def test_draft_types_that_are_slow_or_wrong_are_named(target, loaded):
    """A float16 draft on an M1 accepted no token, without a message."""
    from dataclasses import replace

    assert list(check_combination(loaded, "Apple M1 Max")) == []
    half = random_draft(target)
    half.model.set_dtype(mx.float16)
    on_cpu = loaded_pair(Pair(target, half))
    assert "float16" in next(check_combination(on_cpu, "EPYC")).text
    brain = random_draft(target)
    brain.model.set_dtype(mx.bfloat16)
    metal = Compute("metal", dense=False, dtype=None)
    on_metal = replace(loaded_pair(Pair(target, brain), quantized=True), compute=metal)
    texts = [finding.text for finding in check_combination(on_metal, "Apple M1 Max")]
    assert len(texts) == 2 and any("emulates" in text for text in texts)
    assert len(list(check_combination(on_metal, "Apple M4 Pro"))) == 1
