"""The block-size controller: its choice, when it disables drafting, and how it enables it again."""

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
    """Decode `n_tokens` with `accepted(at)` accepted draft tokens; return every block size.

    With a slow caller (`caller_s`), a step launched early is finished before it is timed.
    """
    at, sizes, ahead = 0, [], False
    while at < n_tokens:
        early, size = ahead, 1 if ahead else policy.next_block_size(at)
        ahead = launches_next_step_early(policy, size, n_tokens - at)
        n_accepted = min(accepted(at), size - 1)
        sizes.append(size)
        level = confidence(at) if callable(confidence) else confidence
        policy.observe(
            Round(
                tokens=(0,) * (n_accepted + 1),
                drafted=size - 1,
                accepted=n_accepted,
                draft_is_finite=healthy or size == 1,
                seconds=0.001 if early and caller_s else curve.at(size, at),
                context_length=at,
                caller_s=caller_s,
                confidence=(level,) * (n_accepted + 1),
                launched_early=early,
                pipelined_next=ahead,
            )
        )
        at += n_accepted + 1
    return sizes


def adaptive(curve, **options):
    return AdaptiveBlock(LiveCosts(curve, 8), **options)


def test_tokens_after_the_end_of_an_answer_do_not_count_as_rejected():
    """Answers that ended inside a block lowered the acceptance that the next one started from."""
    policy = adaptive(CHEAP)
    for at in range(10):
        policy.observe(Round((0,) * 3, 7, 3, True, 0.02, context_length=at, confidence=(0.7,) * 3))
    n_drafted, n_accepted = (
        policy.acceptance_counts().n_drafted,
        policy.acceptance_counts().n_accepted,
    )
    assert n_drafted[:3] == n_accepted[:3] == (10, 10, 10)
    assert n_drafted[3:] == (0,) * 4


def test_high_acceptance_gives_large_blocks():
    """A peer stayed at block size 5 where 8 was twice as fast."""
    sizes = run(adaptive(CHEAP), CHEAP, 600, lambda at: 7)
    assert sizes[-30:].count(8) > 25


def test_a_draft_that_is_never_accepted_costs_almost_nothing():
    """Block size 16 on an M1 halved the throughput and was never disabled."""
    sizes = run(adaptive(CHEAP), CHEAP, 4000, lambda at: 0)
    assert sum(size > 1 for size in sizes) < 4000 / 18
    seconds = sum(CHEAP.at(size, 0) for size in sizes)
    assert seconds < 1.015 * 4000 * 0.010


def test_nothing_is_drafted_where_blocks_cost_what_they_gain():
    """A peer drafted at 15 of 16 accepted and half the throughput: time must decide."""
    sizes = run(adaptive(STEEP), STEEP, 3000, lambda at: 6)
    assert sum(size > 1 for size in sizes) < 30


def test_intervals_between_probes_grow():
    """A probe every 64 tokens cost a peer 6%."""
    sizes = run(adaptive(CHEAP), CHEAP, 3000, lambda at: 0)
    probes = [at for at, size in enumerate(sizes) if size > 1 and at > 100]
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert max(gaps) >= 4 * min(gap for gap in gaps if gap > 1)


def test_a_change_of_text_is_probed_at_once():
    """Code after a page of prose was decoded without drafting to its end."""
    sizes = run(
        adaptive(CHEAP),
        CHEAP,
        2600,
        lambda at: 0 if at < 2000 else 7,
        confidence=lambda at: 0.5 if at < 2000 else 0.95,
    )
    at = 0
    for size in sizes:
        if at > 2000 and size > 1:
            break
        at += 1
    assert at < 2060


def test_steps_stay_pipelined_while_the_budget_allows_no_probe():
    """A due probe that the budget forbade kept every later step from being launched early."""
    policy = adaptive(CHEAP)
    policy._disable("test")
    policy._budget.record(1, 12.0)
    next_step_is_plain = []
    for at in range(300):
        assert policy.next_block_size(at) == 1
        next_step_is_plain.append(policy.next_step_is_plain())
        policy.observe(Round((0,), 0, 0, True, 0.01, context_length=at, confidence=(0.7,)))
    assert sum(next_step_is_plain) > 240


def test_a_slow_caller_does_not_lower_the_cost_of_a_step():
    """A step launched early runs while the caller is busy, so its time is not its cost."""
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


def test_an_unpipelined_step_does_not_measure_plain_decoding():
    """It also waits for the host, which made drafting look 10% better than it was."""
    costs = LiveCosts(CHEAP, 8)
    policy = AdaptiveBlock(costs)
    run(policy, CHEAP, 100, lambda at: 7)
    believed = costs.seconds(1, 100)
    for at in range(100, 120):
        policy.observe(Round((0,), 0, 0, True, 0.020, context_length=at, confidence=(0.7,)))
    assert costs.seconds(1, 100) == believed


@pytest.mark.parametrize(("unpipelined", "drafts"), [(1.0, False), (1.3, True)])
def test_a_draft_at_low_confidence_competes_with_an_unpipelined_step(unpipelined, drafts):
    """A plain step between drafts is slow, so a draft with a speedup of 0.9 can be better."""
    curve = CostCurve((1, 2, 8), (0,), ((0.010, 0.0125, 0.0142),))
    costs = LiveCosts(curve, 8)
    policy = AdaptiveBlock(costs)
    run(policy, curve, 20, lambda at: 7)
    for _ in range(60):
        costs.observe_unpipelined(0, unpipelined * curve.at(1, 0))
    for _ in range(80):
        for accepted, next_one in ((0, 0.95), (7, 0.4)):
            tokens = (0,) * (accepted + 1)
            confidence = (*[0.7] * accepted, next_one)
            policy.observe(Round(tokens, 7, accepted, True, 0.0142, confidence=confidence))
    assert (policy.next_block_size(0) > 1) is drafts


def test_a_slow_caller_gets_drafts_too():
    """With a slow caller no pipelined step can be measured; unpipelined ones must replace them."""
    sizes = run(adaptive(CHEAP), CHEAP, 100, lambda at: 7, caller_s=0.050)
    assert max(sizes[:12]) > 1


def test_plain_steps_are_pipelined_while_drafting_is_enabled():
    """At low confidence nothing was drafted, and each plain step waited for the previous token."""
    policy = adaptive(CostCurve((1, 8), (0,), ((0.010, 0.016),)))
    next_step_is_plain, enabled = policy.next_step_is_plain, []

    def recorded():
        pipelined_next = next_step_is_plain()
        enabled.extend([pipelined_next] * (policy.disabled_reason is None))
        return pipelined_next

    policy.next_step_is_plain = recorded
    easy = [at // 60 % 2 == 0 for at in range(6000)]
    sizes = run(
        policy,
        policy._costs.curve,
        6000,
        lambda at: 7 if easy[at] else 0,
        lambda at: 0.95 if easy[at] else 0.4,
    )
    assert len(enabled) > 1500 and sum(enabled) > 0.4 * len(enabled)
    assert sizes.count(8) > 0.8 * 3000 / 8, "text of high confidence is still drafted"


def test_announced_plain_steps_are_plain():
    """A step that was launched early cannot be replaced by a drafted round."""
    policy = adaptive(CHEAP)
    next_step_is_plain = False
    for at in range(1500):
        size = policy.next_block_size(at)
        assert not (next_step_is_plain and size > 1)
        next_step_is_plain = (
            size == 1 and policy.disabled_reason is not None and policy.next_step_is_plain()
        )
        policy.observe(
            Round((0,), size - 1, 0, True, CHEAP.at(size, 0), None, at, (0.7,), False, 0.0)
        )
    assert policy.disabled_reason and not policy.disabled_for_request


def test_a_draft_without_finite_logits_is_disabled_for_the_request():
    """A draft in half precision on an M1 computed NaN in every round for hours."""
    policy = adaptive(CHEAP)
    sizes = run(policy, CHEAP, 600, lambda at: 0, healthy=False)
    assert sum(size > 1 for size in sizes) == 1
    assert policy.disabled_for_request and "finite" in policy.disabled_reason


def test_a_request_starts_from_earlier_acceptance():
    """Every answer measured again that the draft does not pay on this machine."""
    hopeless = run(adaptive(CHEAP, counts=counts_of(*[0.02] * 7)), CHEAP, 30, lambda at: 0)
    assert max(hopeless[:16]) == 1
    assert sum(size > 1 for size in hopeless) <= 1
    known = run(adaptive(CHEAP, counts=counts_of(*[0.95] * 7)), CHEAP, 60, lambda at: 7)
    assert known[:4] == [1] * 4 and known[4] > 2, "plain steps are measured first"


def test_low_earlier_acceptance_is_overcome():
    """One bad answer disabled a peer's drafting until it was restarted."""
    sizes = run(adaptive(CHEAP, counts=counts_of(*[0.02] * 7)), CHEAP, 1500, lambda at: 7)
    assert sizes[-50:].count(8) > 40


def test_untried_positions_have_the_rate_of_the_last_tried_one():
    """An untried block size that looks bad would never be tried."""
    acceptance = AcceptanceEstimate(7)
    for _ in range(50):
        acceptance.observe(2, 2)
    rates = acceptance.rates()
    assert min(rates) > 0.9


def test_expected_tokens_counts_the_bonus():
    """Tokens per round are committed tokens; other conventions give larger figures."""
    assert expected_tokens([0.5, 0.5]) == [1.0, 1.5, 1.75]


def test_budget_counts_from_the_least_favourable_start():
    """Gains of an hour ago must not allow losses now."""
    budget = SlowdownBudget(100)
    budget.record(5, 2.0)  # three steps gained
    budget.record(1, 2.5)
    budget.record(1, 2.5)
    assert budget.lost_steps == 3.0
    assert budget.allows(1.0, 0.04) and not budget.allows(1.1, 0.04)
    for _ in range(101):
        budget.record(1)
    assert budget.lost_steps == 0.0


def test_budget_is_rescaled_when_plain_steps_are_measured():
    """If plain steps turn out slower, the rounds already recorded were cheaper."""
    budget = SlowdownBudget(100)
    budget.record(1, 2.0)
    budget.rescale(0.75)
    assert budget.lost_steps == 0.5


def test_budget_is_exact_over_a_long_answer():
    """The window is copied to the front of its array now and then; no round may be lost."""
    budget = SlowdownBudget(16)
    for _ in range(500):
        budget.record(1, 1.25)
    assert abs(budget.lost_steps - 16 * 0.25) < 1e-9


def test_probe_interval_doubles_to_a_bound_and_resets():
    """Without a bound, an hour of prose would end drafting."""
    schedule = ProbeSchedule()
    left = []
    for _ in range(6):
        schedule.back_off(longest=200)
        left.append(schedule.remaining)
    assert left == [16, 32, 64, 128, 200, 200]
    schedule.probe_now()
    assert schedule.due


def test_change_of_confidence_is_detected_and_noise_is_not():
    """Probing at every uncertain word would be schedule all the time."""
    import random

    chance, change = random.Random(3), ConfidenceChange()
    steady = [change.observe(min(max(chance.gauss(0.6, 0.2), 0), 1)) for _ in range(2000)]
    assert sum(steady) <= 8
    moved = [change.observe(min(max(chance.gauss(0.93, 0.08), 0), 1)) for _ in range(60)]
    assert any(moved)


def test_early_drafts_are_used_only_where_rounds_get_shorter():
    """Where host and device share cores, the overlap costs more than it saves."""
    for with_s, without_s, kept in ((0.9, 1.0, True), (1.1, 1.0, False)):
        trial = EarlyDraftTrial()
        for _ in range(200):
            early = trial.launches_early
            trial.observe(early, with_s if early else without_s)
        assert trial.launches_early is kept


def test_some_rounds_time_their_draft():
    """The statistics of the default mode could not split draft and verify time."""
    policy, timed = adaptive(CHEAP), 0
    for at in range(200):
        size = policy.next_block_size(at)
        apart = size > 1 and policy.times_draft()
        assert not (apart and policy.launches_next_draft_early()), (
            "a draft launched early cannot be timed"
        )
        timed += apart
        policy.observe(
            Round(
                tokens=(0,) * size,
                drafted=size - 1,
                accepted=size - 1,
                draft_is_finite=True,
                seconds=CHEAP.at(size, at) * (10 if apart else 1),
                draft_s=0.001 if apart else None,
                context_length=at,
            )
        )
    assert 5 < timed < 20
    # the extra wait of a timed round must not count as its cost
    assert policy.next_block_size(200) == 8


def test_counts_of_another_block_size_are_ignored():
    """After a draft was trained with another block size, every answer failed at its end."""
    state = ControllerState(CHEAP, 8, counts_of(0.9, 0.8, 0.7))
    assert state.counts == AcceptanceCounts()
    policy = state.policy()
    run(policy, CHEAP, 200, lambda at: 7)
    state.learn(policy)
    assert min(state.counts.rates) > 0.9


def test_acceptance_falls_along_a_block_as_in_earlier_requests():
    """Evidence on large blocks was forgotten while small ones ran, so large ones looked better."""
    fresh, started = AcceptanceEstimate(7), AcceptanceEstimate(7)
    started.set_prior(counts_of(0.5, *[0.35] * 6))
    for at in range(200):
        for each in (fresh, started):
            each.observe(1, at % 2)
    first, second = started.rates()[:2]
    assert abs(first - fresh.rates()[0]) < 0.01
    assert abs(fresh.rates()[1] - first) < 0.05 and second < first - 0.1


def test_early_draft_trials_are_separate_by_block_size():
    """Times of rounds with different block sizes cannot share a median."""
    state = ControllerState(CHEAP, 8)
    assert state.early_draft_trial(4) is state.early_draft_trial(4)
    assert (
        state.early_draft_trial(4)
        is not state.early_draft_trial()
        is not state.early_draft_trial(2)
    )


def test_counts_cover_whole_requests():
    """A request that ended with drafting disabled passed on only its last lost probes."""
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


def test_probe_block_size_follows_acceptance_along_a_block():
    """Texts whose second draft token is rarely accepted were probed with block size 8."""
    expensive = CostCurve((1, 2, 8), (0,), ((0.1, 0.13, 0.18),))
    flat, steep = (
        run(adaptive(expensive, counts=counts_of(0.3, *[fall] * 6)), expensive, 400, lambda at: 0)
        for fall in (0.3, 0.03)
    )
    assert max(flat) > 2 and set(steep) == {1, 2}
