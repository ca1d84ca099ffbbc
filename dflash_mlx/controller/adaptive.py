"""The width with the most expected tokens per second, round by round, plain steps included.

Three things decide: what a round of each width costs here and now (`costs`), how many of its
tokens would be accepted (`acceptance`, told apart by how sure the target is of its last token),
and how much may still be lost against plain decoding (`ledger`). Drafting goes on while it is
expected to win or has paid so far; then the answer is parked and decodes plainly, with a probe
now and then (`probing`). Nothing is for good but a draft that is broken.
"""

from dflash_mlx.controller.acceptance import Acceptance, Start, expected_tokens
from dflash_mlx.controller.costs import LiveCosts
from dflash_mlx.controller.probing import Probing, TextChange, probe_width, stake
from dflash_mlx.controller.slowdown_budget import SlowdownBudget
from dflash_mlx.decode.early_draft import Overlap
from dflash_mlx.decode.policy import TIMED_EVERY
from dflash_mlx.decode.round import Round

_SPAN = 512
_DRAFTING_SHARE = (0.013, 0.02)
_PROBING_SHARE, _CHANGED_SHARE = 0.02, 0.022
"""Shares of plain decoding's time that may be lost over any `_SPAN` tokens: by drafting that
hardly pays and that surely pays, by probes, and by probes of a text that has just changed."""

_SURE_GAIN = 0.4
"""Speed beyond plain decoding's at which drafting surely pays."""

_EDGE = 1.03
"""How much better another width must look before it is taken."""

_PROBING_COST = 0.008
"""Share of plain decoding's time that probes may take in the long run."""

_UNSURE = (0.55, 0.9)
"""Confidences of the anchor that divide texts into unsure, fair and sure."""

_CREDIT = 2.0
"""Plain steps of past gain that a spell of drafting may lose again before it is parked."""

_MISSING = 3.0
"""Rounds' worth of promised tokens that fail to come before what was learned is doubted."""

_DOUBT, _PROBE_DOUBT = 6.0, 3.0
"""Rounds that old evidence counts for after a fall, and when a probe is to decide."""

_OPTIMISM = 0.5
"""Standard errors that a draft is given the benefit of before it is parked."""

_FADE = 0.95
"""What a plain step between drafts leaves of the evidence that chose it: it shall be retried."""

_FIRST_ROWS = 4
"""Rows that may be tried before any round was seen."""

_TELLING = 8
"""Drafted rounds from which on a request has something to tell the next."""

_SLOWER = "plain decoding is faster on this text"

_HIDDEN = 0.05
"""Share of a round that a caller may be away for before one that was launched early tells too
little: the device went on meanwhile."""

_FIRST_STEPS = 4
"""Plain steps that may run on to be measured; behind a slow reader they tell nothing, and steps
that wait for each other are measured in their place."""

_BELIEVED = 2
"""Rounds of a width after which its cost is a fact."""

_CHECK_EVERY = 500
"""Tokens after which plain steps are measured again, times the gain beyond 1: four plain steps
then cost 0.8% of the time, whatever the gain."""

_WORRY, _CHECK_LOSING = 3.0, 32
"""Behind by so many plain steps, it is after so many tokens."""


class AdaptiveBlock:
    """Chooses 1 to `max_rows` rows each round. Lives as long as one request."""

    def __init__(
        self,
        costs: LiveCosts,
        start: Start | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self.disabled_reason: str | None = None
        self.broken = False
        self._costs = costs
        self._max_rows = max_rows = costs.max_rows
        self._overlap = overlap or Overlap()
        self._all = Acceptance(max_rows - 1)
        if start is not None:
            self._all.begin(start)
        self._by_surety = [Acceptance(max_rows - 1, parent=self._all) for _ in range(3)]
        self._surety = 1
        self._slowdown_budget = SlowdownBudget(_SPAN)
        self._probing = Probing()
        self._change = TextChange()
        self._context = 0
        self._rows = 1
        self._paid = 0.0  # plain steps gained lately, capped: what a losing streak may use up
        self._missing = 0.0  # tokens less than were promised, lately
        self._n_drafted = 0  # rounds
        self._n_plain = 0  # plain steps in a row
        self._losing = False  # whether plain decoding was faster behind the last anchor
        self._n_unchecked = 0  # tokens since plain steps were last measured
        self._check = 0  # plain steps still to be measured

    def seen(self) -> Start:
        """Return the acceptance found by position; nothing where hardly anything was drafted."""
        return self._all.seen() if self._n_drafted >= _TELLING else Start()

    def outlook(self, context: int) -> tuple[int, float]:
        """Return the best drafting width behind `context` rows, and its speed in plain speeds."""
        self._context = context
        return self._best(self._all)

    def rows(self, context: int) -> int:
        """Return the rows of the next round behind `context` rows."""
        self._context = context
        if self.broken or self._check or self._unmeasured(context):
            return 1
        if self.disabled_reason:
            return self._probe() if self._probing.due else 1
        width, gain = self._best_here()
        lost_before, self._losing = self._losing, gain < 1 / _EDGE
        if self._losing and (lost_before or gain * self._costs.unpipelined < 1 / _EDGE):
            return 1
        width = min(width, self._trusted_rows())
        if not self._slowdown_budget.allows(self._risk(width), self._share(gain)):
            self._park("drafting has lost too much time lately")
            return 1
        self._rows = width
        return width

    def next_step_is_plain(self) -> bool:
        """Whether a plain step now will be followed by another."""
        if self.broken:
            return True
        if self._check:
            return self._check > 1
        if self.disabled_reason is not None:
            return self._probing.left > 1
        if self._unmeasured(self._context):
            return self._n_plain < _FIRST_STEPS
        return self._n_plain > 0 and self._best_here()[1] < 1 / _EDGE

    def timed(self) -> bool:
        """Whether the next round should time its draft apart: statistics want the split."""
        return self.disabled_reason is None and self._n_drafted % TIMED_EVERY == TIMED_EVERY - 1

    def drafts_ahead(self) -> bool:
        """Whether to launch the next draft before the caller gets this round's tokens."""
        return self._overlap.on and self.disabled_reason is None and not self.timed()

    def observe(self, done: Round) -> None:
        """Learn what a finished round cost and what it brought."""
        n_tokens = len(done.tokens)
        self._learn_cost(done)
        if done.drafted:
            price = self._price(done)
            self._slowdown_budget.book(n_tokens, price)
            self._learn_acceptance(done, price - n_tokens)
            self._reconsider(done)
        else:
            self._slowdown_budget.book(
                n_tokens, self._costs.unpipelined if done.unpipelined else None
            )
            if self.disabled_reason:
                self._probing.step(n_tokens)
            elif self._best(self._all)[1] < 1 / _EDGE:
                self._park(_SLOWER)
            else:
                self._by_surety[self._surety].fade(_FADE)
        for confidence in done.confidence:
            if self._change.observe(confidence) and self.disabled_reason:
                self._probing.hurry()
                self._all.age(_DOUBT)
        if done.confidence:
            self._surety = sum(done.confidence[-1] >= border for border in _UNSURE)

    def _learn_cost(self, done: Round) -> None:
        """Refine the cost of the round's width."""
        expected = self._costs.seconds(done.drafted + 1, done.context)
        shown = not done.launched_early or done.caller_s <= _HIDDEN * expected
        if done.drafted:
            self._n_plain = 0
            self._n_drafted += 1
            self._n_unchecked += len(done.tokens)
            if done.draft_s is not None:
                return  # it waited for the device once more than rounds do
            if shown:
                self._costs.observe(done.drafted + 1, done.context, done.seconds)
            self._overlap.observe(
                done.launched_early,
                (done.seconds + done.caller_s)
                / self._costs.seconds(done.drafted + 1, done.context),
            )
            return
        self._n_plain += 1
        self._check = max(0, self._check - 1)
        if done.unpipelined and not self._unmeasured(done.context):
            self._costs.observe_unpipelined(done.context, done.seconds)
        elif shown and done.whole:
            believed = self._risk(self._rows) + 1
            self._costs.observe(1, done.context, done.seconds)
            self._slowdown_budget.correct((self._risk(self._rows) + 1) / believed)
        if self._n_plain > 1:
            self._n_unchecked = 0

    def _unmeasured(self, context: int) -> bool:
        """Whether plain steps have to be measured before anything is drafted here."""
        return self._costs.n_seen(1, context) < _BELIEVED

    def _price(self, done: Round) -> float:
        """Return what a round cost in plain steps; a width hardly known is booked as it came."""
        n_rows = done.drafted + 1
        price = self._risk(n_rows) + 1
        if self._costs.n_seen(n_rows, done.context) > _BELIEVED:
            return price
        return max(price, done.seconds / self._costs.seconds(1, done.context))

    def _learn_acceptance(self, done: Round, lost: float) -> None:
        promised = expected_tokens(self._all.hazards())[done.drafted]
        self._all.observe(done.judged, done.accepted)
        self._by_surety[self._surety].observe(done.judged, done.accepted)
        self._paid = min(self._paid - lost, _CREDIT)
        self._missing = max(0.0, self._missing + 0.75 * promised - len(done.tokens))
        if self._missing > _MISSING * promised:
            self._doubt(_DOUBT)

    def _doubt(self, n_rounds: float) -> None:
        """Let what was learned count little: the text has probably changed."""
        self._missing = 0.0
        for acceptance in (self._all, *self._by_surety):
            acceptance.age(n_rounds)

    def _reconsider(self, done: Round) -> None:
        """Park, go on, or come back."""
        if not done.healthy:
            self.broken = True
            self.disabled_reason = "the draft's logits are not finite"
            return
        gain = self._best(self._all)[1]
        hope = self._widest_gain(self._all.hopeful(_OPTIMISM))[1]
        if self.disabled_reason is None:
            if hope < 1 / _EDGE and self._paid < 0:
                self._park(_SLOWER)
            elif self._n_unchecked > self._check_after(gain):
                self._check = 4
        elif gain >= _EDGE:
            self.disabled_reason = None
            if self._paid > 0:
                self._probing.won()
        elif self._paid < 0 and hope < 1:
            self._wait()

    def _share(self, gain: float) -> float:
        """Return the share that drafting may lose: the more, the surer it is to come back."""
        low, high = _DRAFTING_SHARE
        return low + (high - low) * min(max((gain - 1) / _SURE_GAIN, 0.0), 1.0)

    def _check_after(self, gain: float) -> float:
        """Return the tokens after which plain steps are measured again: soon while losing."""
        return _CHECK_LOSING if self._slowdown_budget.worst > _WORRY else _CHECK_EVERY * (gain - 1)

    def _park(self, reason: str) -> None:
        self.disabled_reason = reason
        self._missing = 0.0
        self._wait()

    def _wait(self) -> None:
        """Put off the next probe; what it finds shall outweigh what was known."""
        self._paid = 0.0
        self._doubt(_PROBE_DOUBT)
        self._probing.lost(int(stake(self._risk(self._probe_rows())) / _PROBING_COST))

    def _probe(self) -> int:
        """Return the rows of a probe that is due, or 1 and put it off: plain steps shall run on."""
        width = self._probe_rows()
        share = _CHANGED_SHARE if self._probing.hurried else _PROBING_SHARE
        if width > 1 and self._slowdown_budget.allows(self._risk(width), share):
            return width
        self._probing.postpone()
        return 1

    def _probe_rows(self) -> int:
        """Return the rows of a probe, 1 if it could not win as far as costs are known."""
        costs = self._costs.relative(self._context)[: self._trusted_rows()]
        width, wins = probe_width(self._all, costs, _EDGE)
        return width if wins or self._costs.n_seen(width, self._context) < _BELIEVED else 1

    def _trusted_rows(self) -> int:
        """Return the most rows to try: a cost is trusted up to twice the widest round seen."""
        return min(self._max_rows, max(_FIRST_ROWS, 2 * self._costs.widest_seen(self._context)))

    def _risk(self, n_rows: int) -> float:
        """Return the plain steps that a round loses if nothing is accepted."""
        return self._costs.relative(self._context)[n_rows - 1] - 1

    def _best_here(self) -> tuple[int, float]:
        """Return the best width behind an anchor as sure as the last one, and its speed."""
        return self._best(self._by_surety[self._surety])

    def _best(self, acceptance: Acceptance) -> tuple[int, float]:
        """Return the best width for drafting, and its speed in plain speeds."""
        return self._widest_gain(acceptance.hazards(), self._rows)

    def _widest_gain(self, hazards: list[float], kept: int = 1) -> tuple[int, float]:
        """Return the best width and its speed; `kept` is left for a clearly better one only."""
        tokens = expected_tokens(hazards)
        costs = self._costs.relative(self._context)
        gains = [tokens[at] / costs[at] for at in range(1, len(costs))]
        best = max(range(len(gains)), key=gains.__getitem__)
        if 1 < kept < len(gains) + 2 and gains[best] < gains[kept - 2] * _EDGE:
            best = kept - 2
        return best + 2, gains[best]
