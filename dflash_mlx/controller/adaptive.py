"""The block-size controller: picks the block size of each round by expected tokens per second.

It must not know models, text or threads.
"""

from dflash_mlx.controller.acceptance import AcceptanceCounts, AcceptanceEstimate
from dflash_mlx.controller.by_confidence import AcceptanceByConfidence
from dflash_mlx.controller.costs import LiveCosts
from dflash_mlx.controller.probing import ProbeSchedule
from dflash_mlx.controller.selection import (
    MIN_SPEEDUP,
    best_block_size,
    probe_block_size,
    probe_cost,
)
from dflash_mlx.controller.slowdown_budget import SlowdownBudget
from dflash_mlx.decode.early_draft import EarlyDraftTrial
from dflash_mlx.decode.policy import TIME_DRAFT_EVERY
from dflash_mlx.decode.round import Round

# Sensitivity: change of the mean ratio to the best fixed block size, in percent ± standard error,
# for half and for one and a half times the constant (docs/log.md, 2026-12-01).

_BUDGET_SPAN = 512
"""Tokens of the sliding window: the window of the goal (97% of plain decoding over any 512)."""

_DRAFTING_BUDGET = (0.013, 0.02)
"""Share of the window's time that drafting may lose, at no gain and at `_FULL_BUDGET_GAIN`.
Sensitivity of the first: -0.45 ± 0.21 and -0.23 ± 0.15. Sensitivity of the second: -0.77 ± 0.22 and
+0.05 ± 0.11."""

_PROBING_BUDGET = 0.02
"""Share of the window's time that may be lost before a probe is postponed. Sensitivity: -0.83 ±
0.25 and +0.14 ± 0.18. Raised by half, 2 of 106 scenarios miss the first goal."""

_CHANGE_BUDGET = 0.022
"""The same for a probe because the text changed. Sensitivity: -0.87 ± 0.24 and -0.03 ± 0.06. Raised
by half, 10 of 106 scenarios miss the first goal."""

_FULL_BUDGET_GAIN = 0.4
"""Gain over plain decoding from which on drafting may use its whole budget. Sensitivity: +0.18 ±
0.14 and -0.10 ± 0.09. With the whole budget at any gain: -0.24 ± 0.29, and the lowest ratio falls
from 0.970 to 0.950."""

_PROBING_RATE = 0.008
"""Share of the time that probes may cost in the long run. Sensitivity: +0.06 ± 0.12 and -0.05 ±
0.14. It is 0.4 of the budget of 2%, so that probes alone never exhaust it."""

_PROBE_ROUNDS = 3.0
"""Rounds that older evidence counts for in a probe: its result must outweigh it. Sensitivity: -0.17
± 0.15 and -0.04 ± 0.11."""

_DISABLE_ERRORS = 0.5
"""Standard errors added to acceptance before drafting is disabled. Sensitivity: -0.07 ± 0.13 and
-0.12 ± 0.13. Without it (0), 8 instead of 4 of 207 scenarios miss the second goal."""

_BLOCK_SIZE_GROWTH = 2
"""Largest block size, in multiples of the largest one observed: costs beyond are extrapolated.
Sensitivity: -0.13 ± 0.22 and -0.24 ± 0.14."""

_FIRST_BLOCK_SIZE = _BLOCK_SIZE_GROWTH**2
"""Largest block size before any drafted round: two steps of growth from plain decoding.
Sensitivity: -0.06 ± 0.22 and -0.21 ± 0.17."""

_MAX_CALLER_SHARE = 0.05
"""Share of a round that the caller may take. A round that was launched early continues on the
device meanwhile, so a longer absence makes its time too short by more than 5%."""

_MIN_OBSERVATIONS = 2
"""Rounds of a block size after which its estimated cost is used instead of the measured time.
Sensitivity: -0.55 ± 0.22 and -0.27 ± 0.19."""

_CHECK_STEPS = _MIN_OBSERVATIONS + 2
"""Plain steps in a row while plain decoding is measured: the first and the last are not pipelined
on both sides. After a slow caller the others cannot be measured either, and the unpipelined steps
that follow replace them. Sensitivity: -0.07 ± 0.30 and -0.46 ± 0.20."""

_CHECK_TOKENS = _CHECK_STEPS / _PROBING_RATE
"""Tokens between checks at a gain of 1 (half as many at 0.5): the check steps, which each lose the
gain, then take the share of the time that probes take. Sensitivity: -0.17 ± 0.16 and +0.13 ± 0.13.
"""

_LOSING_STEPS, _LOSING_CHECK_TOKENS = 3.0, 32
"""Plain steps lost from which on a check comes after this many tokens. Sensitivity of the first:
-0.23 ± 0.18 and -0.23 ± 0.17. Sensitivity of the second: +0.02 ± 0.13 and -0.32 ± 0.15."""

_SLOWER = "plain decoding is faster on this text"


class AdaptiveBlock:
    """Chooses block sizes from 1 to the draft's block size. Lives as long as one request.

    Three estimates decide: the cost of a round (`costs`), the conditional acceptance rates
    (`acceptance`, separate for three levels of the target's confidence in the anchor), and the
    time already lost (`slowdown_budget`). While drafting does not pay it is disabled: plain steps
    only, with a probe now and then (`probing`). Only a broken draft is disabled for the rest of
    the request.
    """

    def __init__(
        self,
        costs: LiveCosts,
        counts: AcceptanceCounts | None = None,
        early_draft: EarlyDraftTrial | None = None,
    ) -> None:
        self.disabled_reason: str | None = None
        self.disabled_for_request = False
        self._costs = costs
        self._early_draft = early_draft or EarlyDraftTrial()
        self._acceptance = AcceptanceByConfidence(costs.max_block_size - 1, counts)
        self._budget = SlowdownBudget(_BUDGET_SPAN)
        self._probes = ProbeSchedule()
        self._context = 0
        self._block_size = 1  # of the last drafted round
        self._credit = 0.0  # plain steps gained since drafting was last disabled
        self._n_drafted = 0  # rounds
        self._n_plain = 0  # plain steps in a row
        self._losing = False  # whether plain decoding was faster at the last anchor
        self._n_unchecked = 0  # tokens since plain steps were last measured
        self._n_check_steps = 0  # plain steps still to be measured

    def acceptance_counts(self) -> AcceptanceCounts:
        """Return the counts of this request; empty without a drafted round."""
        return self._acceptance.overall.totals() if self._n_drafted else AcceptanceCounts()

    def best_draft(self, context: int) -> tuple[int, float]:
        """Return the best block size above 1 after `context` tokens, and its expected speedup."""
        self._context = context
        return self._best(self._acceptance.overall)

    def next_block_size(self, context_length: int) -> int:
        """Return the block size of the next round after `context_length` tokens."""
        self._context = context_length
        if self.disabled_for_request or self._n_check_steps or self._unmeasured(context_length):
            return 1
        if self.disabled_reason:
            return self._probe() if self._probes.due else 1
        block_size, speedup = self._best_here()
        lost_before, self._losing = self._losing, speedup < 1 / MIN_SPEEDUP
        if self._losing and (lost_before or speedup * self._costs.unpipelined < 1 / MIN_SPEEDUP):
            return 1
        block_size = min(block_size, self._largest_allowed())
        if not self._budget.allows(self._risk(block_size), _drafting_budget(speedup)):
            self._disable("drafting has lost too much time lately")
            return 1
        self._block_size = block_size
        return block_size

    def next_step_is_plain(self) -> bool:
        """Return whether another plain step follows a plain step now."""
        if self.disabled_for_request:
            return True
        if self._n_check_steps:
            return self._n_check_steps > 1
        if self.disabled_reason is not None:
            return self._probes.remaining > 1
        if self._unmeasured(self._context):
            return self._n_plain < _CHECK_STEPS
        return self._n_plain > 0 and self._best_here()[1] < 1 / MIN_SPEEDUP

    def times_draft(self) -> bool:
        """Return whether the next round times its draft separately, for the statistics."""
        return (
            self.disabled_reason is None
            and self._n_drafted % TIME_DRAFT_EVERY == TIME_DRAFT_EVERY - 1
        )

    def launches_next_draft_early(self) -> bool:
        """Return whether the next draft is launched before the caller gets this round's tokens."""
        return (
            self._early_draft.launches_early
            and self.disabled_reason is None
            and not self.times_draft()
        )

    def observe(self, done: Round) -> None:
        """Update costs, acceptance and budget from a finished round."""
        n_tokens = len(done.tokens)
        self._update_costs(done)
        if done.drafted:
            cost = self._cost(done)
            self._budget.record(n_tokens, cost)
            self._credit += n_tokens - cost
            self._acceptance.observe(done)
            self._reconsider(done)
        else:
            self._budget.record(n_tokens, self._costs.unpipelined if done.unpipelined else None)
            if self.disabled_reason:
                self._probes.advance(n_tokens)
            elif self._best(self._acceptance.overall)[1] < 1 / MIN_SPEEDUP:
                self._disable(_SLOWER)
            else:
                self._acceptance.discount_here()
        if self._acceptance.text_changes(done.confidence) and self.disabled_reason:
            self._probes.probe_now()
            self._acceptance.forget_text()

    def _update_costs(self, done: Round) -> None:
        expected = self._costs.seconds(done.drafted + 1, done.context_length)
        measurable = not done.launched_early or done.caller_s <= _MAX_CALLER_SHARE * expected
        if done.drafted:
            self._n_plain = 0
            self._n_drafted += 1
            self._n_unchecked += len(done.tokens)
            if done.draft_s is not None:
                return  # a timed round waits for the device once more than others
            if measurable:
                self._costs.observe(done.drafted + 1, done.context_length, done.seconds)
            expected = self._costs.seconds(done.drafted + 1, done.context_length)
            self._early_draft.observe(
                done.launched_early, (done.seconds + done.caller_s) / expected
            )
            return
        self._n_plain += 1
        self._n_check_steps = max(0, self._n_check_steps - 1)
        if done.unpipelined and not self._unmeasured(done.context_length):
            self._costs.observe_unpipelined(done.context_length, done.seconds)
        elif measurable and done.measures_one_round:
            before = self._risk(self._block_size) + 1
            self._costs.observe(1, done.context_length, done.seconds)
            self._budget.rescale((self._risk(self._block_size) + 1) / before)
        if self._n_plain > 1:
            self._n_unchecked = 0

    def _unmeasured(self, context: int) -> bool:
        """Return whether plain steps must be measured before anything is drafted."""
        return self._costs.n_observed(1, context) < _MIN_OBSERVATIONS

    def _cost(self, done: Round) -> float:
        """Return the cost of a round in plain steps, at least as measured while it is new."""
        block_size = done.drafted + 1
        cost = self._risk(block_size) + 1
        if self._costs.n_observed(block_size, done.context_length) > _MIN_OBSERVATIONS:
            return cost
        return max(cost, done.seconds / self._costs.seconds(1, done.context_length))

    def _reconsider(self, done: Round) -> None:
        """Disable drafting, continue, or enable it again after a drafted round."""
        if not done.draft_is_finite:
            self.disabled_for_request = True
            self.disabled_reason = "the draft's logits are not finite"
            return
        speedup = self._best(self._acceptance.overall)[1]
        upper_rates = self._acceptance.overall.upper_rates(_DISABLE_ERRORS)
        upper = best_block_size(upper_rates, self._costs.relative(self._context))[1]
        if self.disabled_reason is None:
            if upper < 1 / MIN_SPEEDUP and self._credit < 0:
                self._disable(_SLOWER)
            elif self._n_unchecked > self._check_interval(speedup):
                self._n_check_steps = _CHECK_STEPS
        elif speedup >= MIN_SPEEDUP:
            self.disabled_reason = None
            if self._credit > 0:
                self._probes.reset()
        elif self._credit < 0 and upper < 1:
            self._back_off()

    def _check_interval(self, speedup: float) -> float:
        """Return the tokens after which plain steps are measured again."""
        losing = self._budget.lost_steps > _LOSING_STEPS
        return _LOSING_CHECK_TOKENS if losing else _CHECK_TOKENS * (speedup - 1)

    def _disable(self, reason: str) -> None:
        self.disabled_reason = reason
        self._back_off()

    def _back_off(self) -> None:
        """Lengthen the interval to the next probe, and discount the evidence it is added to."""
        self._credit = 0.0
        self._acceptance.limit_evidence(_PROBE_ROUNDS)
        longest = probe_cost(self._risk(self._probe_size())) / _PROBING_RATE
        self._probes.back_off(int(longest))

    def _probe(self) -> int:
        """Return the block size of a due probe, or postpone it and return 1."""
        block_size = self._probe_size()
        share = _CHANGE_BUDGET if self._probes.after_change else _PROBING_BUDGET
        if block_size > 1 and self._budget.allows(self._risk(block_size), share):
            return block_size
        self._probes.postpone()
        return 1

    def _probe_size(self) -> int:
        """Return the block size of a probe; 1 if no measured block size can win."""
        costs = self._costs.relative(self._context)[: self._largest_allowed()]
        block_size, wins = probe_block_size(self._acceptance.overall, costs, MIN_SPEEDUP)
        unmeasured = self._costs.n_observed(block_size, self._context) < _MIN_OBSERVATIONS
        return block_size if wins or unmeasured else 1

    def _largest_allowed(self) -> int:
        """Return the largest block size whose cost estimate is close to an observed one."""
        observed = self._costs.largest_observed(self._context)
        allowed = max(_FIRST_BLOCK_SIZE, int(_BLOCK_SIZE_GROWTH * observed))
        return min(self._costs.max_block_size, allowed)

    def _risk(self, block_size: int) -> float:
        """Return the plain steps that a round loses if no draft token is accepted."""
        return self._costs.relative(self._context)[block_size - 1] - 1

    def _best_here(self) -> tuple[int, float]:
        """Return the best block size and its speedup at the confidence of the last anchor."""
        return self._best(self._acceptance.here)

    def _best(self, estimate: AcceptanceEstimate) -> tuple[int, float]:
        costs = self._costs.relative(self._context)
        return best_block_size(estimate.rates(), costs, self._block_size)


def _drafting_budget(speedup: float) -> float:
    """Return the share of time that drafting may lose: more where it is likely to win it back."""
    low, high = _DRAFTING_BUDGET
    return low + (high - low) * min(max((speedup - 1) / _FULL_BUDGET_GAIN, 0.0), 1.0)
