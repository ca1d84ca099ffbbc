"""Costs of rounds: interpolation, the Kalman filter, and the stored file."""

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


def test_costs_between_measured_block_sizes_are_interpolated():
    """A step function makes all block sizes between two look equal."""
    assert CURVE.at(5, 0) == pytest.approx(0.018)
    assert CURVE.at(2, 0) == pytest.approx(0.012)


def test_larger_block_sizes_than_measured_are_extrapolated():
    """A constant after the last point makes the largest block size look best."""
    assert CURVE.at(16, 0) == pytest.approx(0.040)


def test_context_costs_more_in_large_blocks():
    """At 32K a peer continued to draft at half the throughput, with 14 of 15 tokens accepted."""
    assert CURVE.at(8, 10_000) - CURVE.at(8, 0) == pytest.approx(8 * (CURVE.at(1, 10_000) - 0.010))


def test_measured_contexts_are_used():
    """A measurement at a context is better than an estimate for it."""
    curve = CostCurve((1, 4), (0, 1000), ((0.01, 0.02), (0.02, 0.08)))
    assert curve.at(4, 1000) == pytest.approx(0.08)
    assert curve.at(4, 500) == pytest.approx(0.05)


def _observe(costs, block_size, seconds, times=30, context=0):
    rng = np.random.default_rng(0)
    for _ in range(times):
        costs.observe(block_size, context, seconds * math.exp(rng.normal(0, 0.05)))


def test_a_drafted_round_does_not_change_plain_steps():
    """An error of the curve at one block size must not make plain decoding look slow."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.048)
    assert costs.seconds(8, 0) == pytest.approx(0.048, rel=0.1)
    assert costs.seconds(1, 0) == pytest.approx(0.010, rel=0.1)
    assert costs.seconds(7, 0) > 0.030  # the neighbour is corrected too


def test_a_machine_that_slows_down_while_drafting_slows_plain_steps_too():
    """A hot machine would otherwise disable a draft that pays."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.024)
    before = costs.relative(0)[7]
    _observe(costs, 8, 0.024 * 1.8)
    assert costs.relative(0)[7] == pytest.approx(before, rel=0.25)


def test_a_plain_step_corrects_drafted_block_sizes():
    """Estimates drift apart while only one of the two is measured."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 4, 0.016, times=400)
    _observe(costs, 1, 0.008)
    assert costs.relative(0)[3] == pytest.approx(2.0, rel=0.12)


def test_one_outlier_changes_little():
    """One round of a second disabled drafting for the rest of an answer."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.010)
    _observe(costs, 8, 0.024)
    before = costs.relative(0)[7]
    costs.observe(8, 0, 1.0)
    assert costs.relative(0)[7] == pytest.approx(before, rel=0.15)


def test_a_block_size_counts_as_observed_at_similar_contexts_only():
    """The cost of a round at 500 tokens of context says little about 30,000."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 4, 0.016, context=500)
    assert costs.largest_observed(600) == 4
    assert costs.largest_observed(30_000) == 1


def test_stored_costs_are_read_back(tmp_path):
    """Without a stored file every start takes two seconds longer."""
    costs = LiveCosts(CURVE, 8)
    _observe(costs, 1, 0.02)
    store = CostStore(tmp_path / "new")
    learned = LearnedCosts(costs.corrected_curve(), counts_of(0.5, 0.4))
    assert store.load(KEY) == (None, None)
    assert store.save(KEY, learned) is None
    assert store.load(KEY) == (learned, None)
    assert learned.curve.at(1, 0) == pytest.approx(0.02, rel=0.05)


def test_costs_of_another_version_are_ignored_with_a_reason(tmp_path):
    """Kernels change between versions of MLX, and so do costs."""
    from dataclasses import replace

    store = CostStore(tmp_path)
    store.save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
    learned, reason = store.load(replace(KEY, mlx="0.33.0"))
    assert learned is None
    assert "0.32.4" in reason and "0.33.0" in reason


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 1}', '{"format": 7, "key": {}}', "\x00", "[" * 200_000, "null"],
    ids=lambda text: text[:20],
)
def test_a_damaged_cost_file_is_set_aside(tmp_path, text):
    """A file cut short by a full disk must not prevent the model from loading."""
    store, file = CostStore(tmp_path), tmp_path / KEY.name
    file.write_text(text)
    learned, reason = store.load(KEY)
    assert learned is None and reason.count("\n") == 0 and "damaged" in reason
    assert not file.exists() and file.with_name(f"{file.name}.damaged").read_text() == text
    assert store.load(KEY) == (None, None)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("curve", "block_sizes", [2, 1, 8]),
        ("curve", "block_sizes", [1, 2, math.inf]),
        ("curve", "block_sizes", [1, 2, 10**400]),
        ("curve", "seconds", [[-1.0, 1.0, 1.0]]),
        ("curve", "seconds", [[0.0, 1.0, 1.0]]),
        ("curve", "seconds", [[math.nan, 1.0, 1.0]]),
        ("curve", "seconds", [[True, 1.0, 1.0]]),
        ("curve", "seconds", "abc"),
        ("curve", "contexts", []),
        ("curve", "contexts", [0.5]),
        ("curve", "context_token_s", "1"),
        ("counts", "n_drafted", [1.0]),
        ("counts", "n_accepted", [math.inf]),
        ("key", "chip", 5),
        ("key", "surplus", "x"),
    ],
)
def test_invalid_costs_are_set_aside(tmp_path, part, field, value):
    """A file edited by hand gave values that failed later, when an answer began."""
    store = CostStore(tmp_path)
    store.save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
    file = tmp_path / KEY.name
    values = json.loads(file.read_text())
    values[part][field] = value
    file.write_text(json.dumps(values))
    learned, reason = store.load(KEY)
    assert learned is None and "damaged" in reason and "\n" not in reason


def test_a_folder_that_cannot_be_written_gives_a_reason(tmp_path):
    """With a read-only home the model must still load."""
    (tmp_path / "file").write_text("")
    assert CostStore(tmp_path / "file").save(KEY, LearnedCosts(CURVE, AcceptanceCounts()))
