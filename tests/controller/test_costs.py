"""Costs of rounds: read off a curve, corrected by what is seen, kept for the next time."""

import json
import math

import numpy as np
import pytest

from dflash_mlx.controller.acceptance import AcceptanceCounts
from dflash_mlx.controller.cost_store import CostKey, CostStore, LearnedCosts
from dflash_mlx.controller.costs import CostCurve, LiveCosts
from tests.controller.counts import counts_of

CURVE = CostCurve((1, 2, 8), (0,), ((0.010, 0.012, 0.024),), context_token_s=1e-6)
KEY = CostKey("M9", "metal", "some/model", "some/draft", "4 bits", "accelerate", "0.32.4")


def test_widths_between_measured_ones_lie_on_the_line():
    """A step function would make every width between two look alike."""
    assert CURVE.at(5, 0) == pytest.approx(0.018)
    assert CURVE.at(2, 0) == pytest.approx(0.012)


def test_a_width_beyond_the_measured_ones_is_not_taken_to_be_free():
    """A level line behind the last width would send every round to the widest one."""
    assert CURVE.at(16, 0) == pytest.approx(0.040)


def test_context_makes_wide_rounds_dearer_than_narrow_ones():
    """At 32K one peer drafted on at half the speed, 14 of 15 tokens accepted."""
    assert CURVE.at(8, 10_000) - CURVE.at(8, 0) == pytest.approx(8 * (CURVE.at(1, 10_000) - 0.010))


def test_contexts_that_were_measured_are_believed():
    """What was measured at a context is better than what is reckoned for it."""
    curve = CostCurve((1, 4), (0, 1000), ((0.01, 0.02), (0.02, 0.08)))
    assert curve.at(4, 1000) == pytest.approx(0.08)
    assert curve.at(4, 500) == pytest.approx(0.05)


def _observe(costs, block_size, seconds, times=30, context=0):
    rng = np.random.default_rng(0)
    for _ in range(times):
        costs.observe(block_size, context, seconds * math.exp(rng.normal(0, 0.05)))


def test_a_width_that_is_seen_is_corrected_without_moving_plain_steps():
    """A curve that is wrong about one width must not make plain decoding look slow."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.048)
    assert costs.seconds(8, 0) == pytest.approx(0.048, rel=0.1)
    assert costs.seconds(1, 0) == pytest.approx(0.010, rel=0.1)
    assert costs.seconds(7, 0) > 0.030  # and its neighbour has learned from it


def test_a_machine_that_slows_down_while_drafting_slows_plain_steps_too():
    """A hot machine would otherwise park a draft that pays."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.024)
    before = costs.relative(0)[7]
    _observe(costs, 8, 0.024 * 1.8)
    assert costs.relative(0)[7] == pytest.approx(before, rel=0.25)


def test_plain_steps_seen_again_correct_the_widths_that_were_drafted_meanwhile():
    """Prices drift apart where only one side is measured."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 4, 0.016, times=400)
    _observe(costs, 1, 0.008)
    assert costs.relative(0)[3] == pytest.approx(2.0, rel=0.12)


def test_one_page_fault_changes_little():
    """A single round of a second once parked a draft for the rest of an answer."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.024)
    before = costs.relative(0)[7]
    costs.observe(8, 0, 1.0)
    assert costs.relative(0)[7] == pytest.approx(before, rel=0.15)


def test_a_width_counts_as_seen_only_at_contexts_like_the_one_it_was_seen_at():
    """What a round costs at 500 rows says little about 30,000."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 4, 0.016, context=500)
    assert costs.largest_observed(600) == 4
    assert costs.largest_observed(30_000) == 1


def test_what_was_learned_is_read_back(tmp_path):
    """Measuring again at every start would cost two seconds each time."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.02)
    store, learned = (
        CostStore(tmp_path / "new"),
        LearnedCosts(costs.corrected_curve(), counts_of(0.5, 0.4)),
    )
    assert store.load(KEY) == (None, None)
    assert store.save(KEY, learned) is None
    assert store.load(KEY) == (learned, None)
    assert learned.curve.at(1, 0) == pytest.approx(0.02, rel=0.05)


def test_costs_of_another_version_are_ignored_with_a_reason(tmp_path):
    """Kernels change between versions; old costs would choose widths for machines that were."""
    from dataclasses import replace

    store = CostStore(tmp_path)
    store.save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
    learned, reason = store.load(replace(KEY, mlx="0.33.0"))
    assert learned is None
    assert "0.32.4" in reason and "0.33.0" in reason


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 7, "key": {}}', "\x00"])
def test_a_broken_cost_file_is_ignored_with_a_reason(tmp_path, text):
    """A file cut short by a full disk must not keep the model from loading."""
    store = CostStore(tmp_path)
    (tmp_path / KEY.name).write_text(text)
    learned, reason = store.load(KEY)
    assert learned is None
    assert reason


def test_costs_that_make_no_sense_are_ignored_with_a_reason(tmp_path):
    """Edited by hand, or by a program that knew another meaning."""
    store = CostStore(tmp_path)
    store.save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
    file = tmp_path / KEY.name
    values = json.loads(file.read_text())
    values["curve"]["block_sizes"] = [2, 1, 8]
    file.write_text(json.dumps(values))
    assert store.load(KEY)[0] is None


def test_a_folder_that_cannot_be_written_only_gives_a_reason(tmp_path):
    """Read-only homes exist; the model runs all the same."""
    (tmp_path / "file").write_text("")
    assert CostStore(tmp_path / "file").save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
