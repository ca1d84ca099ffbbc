"""The width controller: what it takes, when it stops, and how it comes back."""

import itertools

import pytest

from dflash_mlx.controller.acceptance import AcceptanceCounts, AcceptanceEstimate, expected_tokens
from dflash_mlx.controller.adaptive import AdaptiveBlock
from dflash_mlx.controller.by_confidence import ConfidenceChange
from dflash_mlx.controller.costs import CostCurve, LiveCosts
from dflash_mlx.controller.probing import ProbeSchedule
from dflash_mlx.controller.slowdown_budget import SlowdownBudget
from dflash_mlx.controller.state import ControllerState
from dflash_mlx.decode.early_draft import EarlyDraftTrial
from dflash_mlx.decode.policy import launches_next_step_early
from dflash_mlx.decode.round import Round
from tests.controller.counts import counts_of

CHEAP = CostCurve((1, 8), (0,), ((0.010, 0.014),))
STEEP = CostCurve((1, 8), (0,), ((0.010, 0.080),))


def run(policy, curve, n_tokens, accepted, confidence=0.7, healthy=True, caller_s=0.0):
    """Decode `n_tokens` with `accepted(at)` draft tokens right; return the rows of every round.

    A reader who is away before each round leaves nothing to time of a step launched early.
    """
    at, rows, ahead = 0, [], False
    while at < n_tokens:
        early, width = ahead, 1 if ahead else policy.next_block_size(at)
        ahead = launches_next_step_early(policy, width, n_tokens - at)
        right = min(accepted(at), width - 1)
        rows.append(width)
        policy.observe(
            Round(
                tokens=(0,) * (right + 1),
                drafted=width - 1,
                accepted=right,
                draft_is_finite=healthy or width == 1,
                seconds=0.001 if early and caller_s else curve.at(width, at),
                context_length=at,
                caller_s=caller_s,
                confidence=(confidence(at) if callable(confidence) else confidence,) * (right + 1),
                launched_early=early,
                pipelined_next=ahead,
            )
        )
        at += right + 1
    return rows


def adaptive(curve, **options):
    return AdaptiveBlock(LiveCosts(curve, 8), **options)


def test_tokens_behind_the_end_of_an_answer_are_not_taken_for_refused():
    """Short answers that ended inside a block taught the next one that the draft is bad."""
    policy = adaptive(CHEAP)
    for at in range(10):
        policy.observe(Round((0,) * 3, 7, 3, True, 0.02, context_length=at, confidence=(0.7,) * 3))
    n_drafted, n_accepted = (
        policy.acceptance_counts().n_drafted,
        policy.acceptance_counts().n_accepted,
    )
    assert n_drafted[:3] == n_accepted[:3] == (10, 10, 10)
    assert n_drafted[3:] == (0,) * 4


def test_text_that_drafts_well_gets_wide_blocks():
    """The default of a peer stayed at 5 where 8 was twice as fast."""
    rows = run(adaptive(CHEAP), CHEAP, 600, lambda at: 7)
    assert rows[-30:].count(8) > 25


def test_a_draft_that_is_never_right_costs_almost_nothing():
    """Block 16 on an M1 halved the speed of plain decoding and went on."""
    rows = run(adaptive(CHEAP), CHEAP, 4000, lambda at: 0)
    assert sum(width > 1 for width in rows) < 4000 / 18
    seconds = sum(CHEAP.at(width, 0) for width in rows)
    assert seconds < 1.015 * 4000 * 0.010


def test_where_rows_cost_what_they_bring_nothing_is_drafted():
    """Acceptance of 15 in 16 and still half the speed: the decision is by time."""
    rows = run(adaptive(STEEP), STEEP, 3000, lambda at: 6)
    assert sum(width > 1 for width in rows) < 30


def test_probes_come_at_growing_distances():
    """Probing every 64 tokens for ever cost one peer 6%."""
    rows = run(adaptive(CHEAP), CHEAP, 3000, lambda at: 0)
    probes = [at for at, width in enumerate(rows) if width > 1 and at > 100]
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert max(gaps) >= 4 * min(gap for gap in gaps if gap > 1)


def test_a_change_of_text_brings_drafting_back_at_once():
    """Code after a page of prose was decoded plainly to its end."""
    rows = run(
        adaptive(CHEAP),
        CHEAP,
        2600,
        lambda at: 0 if at < 2000 else 7,
        confidence=lambda at: 0.5 if at < 2000 else 0.95,
    )
    at = 0
    for width in rows:
        if at > 2000 and width > 1:
            break
        at += 1
    assert at < 2060


def test_a_parked_answer_runs_on_while_its_losses_allow_no_probe():
    """A probe that was due and never made kept every later step from being launched early."""
    policy = adaptive(CHEAP)
    policy._disable("test")
    policy._budget.record(1, 12.0)
    next_step_is_plain = []
    for at in range(300):
        assert policy.next_block_size(at) == 1
        next_step_is_plain.append(policy.next_step_is_plain())
        policy.observe(Round((0,), 0, 0, True, 0.01, context_length=at, confidence=(0.7,)))
    assert sum(next_step_is_plain) > 240


def test_a_slow_reader_is_not_taken_for_a_fast_device():
    """A step launched early runs while the caller is away: its seconds do not tell its cost."""
    costs = LiveCosts(CHEAP, 8)
    policy = AdaptiveBlock(costs)
    run(policy, CHEAP, 50, lambda at: 0)
    believed = costs.seconds(1, 50)
    for caller_s, moves in ((0.050, False), (0.0, True)):
        for at in range(50, 70):
            policy.observe(
                Round(
                    (0,), 0, 0, True, 0.001, None, at, (0.7,), True, caller_s, pipelined_next=True
                )
            )
        assert (costs.seconds(1, 50) < 0.9 * believed) is moves


def test_a_plain_step_by_itself_is_no_measure_of_plain_decoding():
    """It also waits for the host, which made drafting look a tenth better than it was."""
    costs = LiveCosts(CHEAP, 8)
    policy = AdaptiveBlock(costs)
    run(policy, CHEAP, 100, lambda at: 7)
    believed = costs.seconds(1, 100)
    for at in range(100, 120):
        policy.observe(Round((0,), 0, 0, True, 0.020, context_length=at, confidence=(0.7,)))
    assert costs.seconds(1, 100) == believed


@pytest.mark.parametrize(("alone", "drafts"), [(1.0, False), (1.3, True)])
def test_a_draft_behind_an_unsure_anchor_has_to_beat_a_step_that_waits(alone, drafts):
    """Plain steps between drafts are dearer than plain decoding: a draft at 0.9 of it is better."""
    curve = CostCurve((1, 2, 8), (0,), ((0.010, 0.0125, 0.0142),))
    costs = LiveCosts(curve, 8)
    policy = AdaptiveBlock(costs)
    run(policy, curve, 20, lambda at: 7)
    for _ in range(60):
        costs.observe_unpipelined(0, alone * curve.at(1, 0))
    for _ in range(80):
        for accepted, next_one in ((0, 0.95), (7, 0.4)):
            tokens = (0,) * (accepted + 1)
            sure = (*[0.7] * accepted, next_one)
            policy.observe(Round(tokens, 7, accepted, True, 0.0142, confidence=sure))
    assert (policy.next_block_size(0) > 1) is drafts


def test_a_slow_reader_gets_drafts_too():
    """Steps launched early tell nothing behind a reader who is slow; others must do."""
    rows = run(adaptive(CHEAP), CHEAP, 100, lambda at: 7, caller_s=0.050)
    assert max(rows[:12]) > 1


def test_plain_steps_run_on_while_drafting_pays_elsewhere():
    """Where the target is unsure nothing was drafted, and each plain step waited for the last."""
    policy = adaptive(CostCurve((1, 8), (0,), ((0.010, 0.016),)))
    next_step_is_plain, unparked = policy.next_step_is_plain, []

    def watched():
        pipelined_next = next_step_is_plain()
        unparked.extend([pipelined_next] * (policy.disabled_reason is None))
        return pipelined_next

    policy.next_step_is_plain = watched
    easy = [at // 60 % 2 == 0 for at in range(6000)]
    rows = run(
        policy,
        policy._costs.curve,
        6000,
        lambda at: 7 if easy[at] else 0,
        lambda at: 0.95 if easy[at] else 0.4,
    )
    assert len(unparked) > 1500 and sum(unparked) > 0.4 * len(unparked)
    assert rows.count(8) > 0.8 * 3000 / 8, "sure stretches are drafted all the same"


def test_parked_steps_and_followed_by_plain_ones():
    """A step launched early for a plain round must not meet a drafted one."""
    policy = adaptive(CHEAP)
    next_step_is_plain = False
    for at in range(1500):
        width = policy.next_block_size(at)
        assert not (next_step_is_plain and width > 1)
        next_step_is_plain = (
            width == 1 and policy.disabled_reason is not None and policy.next_step_is_plain()
        )
        policy.observe(
            Round((0,), width - 1, 0, True, CHEAP.at(width, 0), None, at, (0.7,), False, 0.0)
        )
    assert policy.disabled_reason and not policy.disabled_for_request


def test_a_draft_without_finite_logits_is_stopped_for_good_with_a_reason():
    """A draft in half precision on an M1 computed NaN at every round for hours."""
    policy = adaptive(CHEAP)
    rows = run(policy, CHEAP, 600, lambda at: 0, healthy=False)
    assert sum(width > 1 for width in rows) == 1
    assert policy.disabled_for_request and "finite" in policy.disabled_reason


def test_a_request_starts_from_what_earlier_ones_found():
    """Every answer began by finding out again that the draft is no good on this machine."""
    hopeless = run(adaptive(CHEAP, counts=counts_of(*[0.02] * 7)), CHEAP, 30, lambda at: 0)
    assert max(hopeless[:16]) == 1
    assert sum(width > 1 for width in hopeless) <= 1
    known = run(adaptive(CHEAP, counts=counts_of(*[0.95] * 7)), CHEAP, 60, lambda at: 7)
    assert known[:4] == [1] * 4 and known[4] > 2, "plain steps are measured first"


def test_no_start_is_for_good():
    """One bad answer switched a peer's drafting off until it was restarted."""
    rows = run(adaptive(CHEAP, counts=counts_of(*[0.02] * 7)), CHEAP, 1500, lambda at: 7)
    assert rows[-50:].count(8) > 40


def test_acceptance_at_positions_not_tried_is_that_of_the_last_one_tried():
    """A width never tried that looks hopeless is never tried."""
    acceptance = AcceptanceEstimate(7)
    for _ in range(50):
        acceptance.observe(2, 2)
    rates = acceptance.rates()
    assert min(rates) > 0.9


def test_expected_tokens_counts_the_bonus():
    """Two of three conventions flatter; this one is committed tokens."""
    assert expected_tokens([0.5, 0.5]) == [1.0, 1.5, 1.75]


def test_ledger_counts_from_the_least_favourable_beginning():
    """Gains of an hour ago do not excuse a slow answer now."""
    budget = SlowdownBudget(100)
    budget.record(5, 2.0)  # three steps won
    budget.record(1, 2.5)
    budget.record(1, 2.5)
    assert budget.lost_steps == 3.0
    assert budget.allows(1.0, 0.04) and not budget.allows(1.1, 0.04)
    for _ in range(101):
        budget.record(1)
    assert budget.lost_steps == 0.0


def test_ledger_corrects_what_was_booked_at_a_wrong_price():
    """Plain steps that turn out longer make the drafts of a moment ago cheaper."""
    budget = SlowdownBudget(100)
    budget.record(1, 2.0)
    budget.rescale(0.75)
    assert budget.lost_steps == 0.5


def test_ledger_keeps_its_books_over_a_long_answer():
    """Books that are copied forward once in a while must not lose a line."""
    budget = SlowdownBudget(16)
    for _ in range(500):
        budget.record(1, 1.25)
    assert abs(budget.lost_steps - 16 * 0.25) < 1e-9


def test_probing_doubles_to_a_bound_and_starts_again():
    """Without a bound an hour of prose would end drafting."""
    schedule = ProbeSchedule()
    left = []
    for _ in range(6):
        schedule.back_off(longest=200)
        left.append(schedule.remaining)
    assert left == [16, 32, 64, 128, 200, 200]
    schedule.probe_now()
    assert schedule.due


def test_text_change_is_noticed_and_noise_is_not():
    """Probing at every uncertain word would be schedule all the time."""
    import random

    chance, change = random.Random(3), ConfidenceChange()
    calm = [change.observe(min(max(chance.gauss(0.6, 0.2), 0), 1)) for _ in range(2000)]
    assert sum(calm) <= 8
    moved = [change.observe(min(max(chance.gauss(0.93, 0.08), 0), 1)) for _ in range(60)]
    assert any(moved)


def test_drafting_ahead_is_kept_only_where_rounds_get_shorter():
    """On shared cores the overlap costs more than it hides."""
    for with_s, without_s, kept in ((0.9, 1.0, True), (1.1, 1.0, False)):
        trial = EarlyDraftTrial()
        for _ in range(200):
            early = trial.launches_early
            trial.observe(early, with_s if early else without_s)
        assert trial.launches_early is kept


def test_the_draft_is_timed_apart_now_and_then():
    """Statistics of the default mode had no split between draft and verify."""
    policy, timed = adaptive(CHEAP), 0
    for at in range(200):
        width = policy.next_block_size(at)
        apart = width > 1 and policy.times_draft()
        assert not (apart and policy.launches_next_draft_early()), (
            "a draft launched early cannot be timed"
        )
        timed += apart
        policy.observe(
            Round(
                tokens=(0,) * width,
                drafted=width - 1,
                accepted=width - 1,
                draft_is_finite=True,
                seconds=CHEAP.at(width, at) * (10 if apart else 1),
                draft_s=0.001 if apart else None,
                context_length=at,
            )
        )
    assert 5 < timed < 20
    # what the extra wait cost is not what a round costs
    assert policy.next_block_size(200) == 8


def test_a_start_learned_with_other_blocks_is_left_out():
    """A draft trained again with another block size made every answer fail at its end."""
    state = ControllerState(CHEAP, 8, counts_of(0.9, 0.8, 0.7))
    assert state.counts == AcceptanceCounts()
    policy = state.policy()
    run(policy, CHEAP, 200, lambda at: 7)
    state.learn(policy)
    assert min(state.counts.rates) > 0.9


def test_odds_fall_along_a_block_as_they_did_before():
    """What is known of wide blocks was forgotten while narrow ones ran: they looked better."""
    fresh, started = AcceptanceEstimate(7), AcceptanceEstimate(7)
    started.set_prior(counts_of(0.5, *[0.35] * 6))
    for at in range(200):
        for each in (fresh, started):
            each.observe(1, at % 2)
    first, second = started.rates()[:2]
    assert abs(first - fresh.rates()[0]) < 0.01
    assert abs(fresh.rates()[1] - first) < 0.05 and second < first - 0.1


def test_trials_of_drafting_ahead_are_apart_by_the_size_of_rounds():
    """Seconds of one block and shares of another have no median in common."""
    state = ControllerState(CHEAP, 8)
    assert state.early_draft_trial(4) is state.early_draft_trial(4)
    assert (
        state.early_draft_trial(4)
        is not state.early_draft_trial()
        is not state.early_draft_trial(2)
    )


def test_a_start_remembers_whole_requests_and_not_their_ends():
    """One that ended parked left the next a few lost probes to begin with."""
    state = ControllerState(CHEAP, 8)
    policy = state.policy()
    run(policy, CHEAP, 300, lambda at: 7)
    run(policy, CHEAP, 100, lambda at: 0)
    state.learn(policy)
    after_one = state.counts.rates[0]
    assert after_one > 0.5
    policy = state.policy()
    run(policy, CHEAP, 300, lambda at: 1)
    state.learn(policy)
    first, second = state.counts.rates[:2]
    assert first > after_one and second < first


def test_probes_are_as_wide_as_acceptance_along_a_block_is_worth():
    """Texts whose second token is seldom right were probed with eight rows, at their price."""
    dear = CostCurve((1, 2, 8), (0,), ((0.1, 0.13, 0.18),))
    flat, steep = (
        run(adaptive(dear, counts=counts_of(0.3, *[fall] * 6)), dear, 400, lambda at: 0)
        for fall in (0.3, 0.03)
    )
    assert max(flat) > 2 and set(steep) == {1, 2}
