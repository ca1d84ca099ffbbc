"""What rounds cost here, found by decoding: the survey is a policy, run through the one loop.

What is measured so is what will be paid: draft, verification, overhead and the host's own work.
The text is nonsense and is thrown away.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from dflash_mlx.config import SamplingConfig
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.decode.accept import request_rule
from dflash_mlx.decode.loop import DecodeConfig, StopDecision, decode
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.decode.round import Round
from dflash_mlx.models.pair import Pair

BUDGET_S = 1.6
"""Seconds that a survey may take; a round that was begun is finished."""

_PROMPT_ROWS = 16
_WARM_UP = 1
"""Rounds of a width that are not counted: the first of a shape may build kernels."""

_ENOUGH = 3
"""Rounds of a width that are measured."""

_AT_LEAST = 2
"""Widths without which there is nothing to compare."""


class Survey:
    """A policy that goes through widths, the telling ones first, until its time is up."""

    disabled_reason = None
    broken = False

    def __init__(self, max_rows: int, budget_s: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + budget_s
        self._seen: dict[int, list[float]] = defaultdict(list)
        self._widths = _order(max_rows)
        self._width = next(self._widths)
        self._left = _WARM_UP + _ENOUGH
        self.done = False

    def rows(self, context: int) -> int:
        """Return the width being measured."""
        return self._width

    def next_step_is_plain(self) -> bool:
        """Whether another plain step follows, as it would in plain decoding."""
        return self._width == 1 and self._left > 1

    def timed(self) -> bool:
        """Whether drafts are timed apart; here never."""
        return False

    def drafts_ahead(self) -> bool:
        """Whether drafts are launched early; here never."""
        return False

    def observe(self, done: Round) -> None:
        """Take a round's time and go on to the next."""
        self._left -= 1
        if self._left < _ENOUGH and done.whole:
            self._seen[done.drafted + 1].append(done.seconds)
        hurried = len(self._seen[self._width]) >= 1 and self._clock() >= self._until
        if self._left and not hurried:
            return
        width = next(self._widths, None)
        self.done = width is None or (self._clock() >= self._until and len(self._seen) >= _AT_LEAST)
        self._width, self._left = width or 1, _WARM_UP + _ENOUGH

    def curve(self, row_s: float) -> CostCurve:
        """Return what was measured."""
        widths = tuple(sorted(width for width, seen in self._seen.items() if seen))
        seconds = tuple(median(self._seen[width]) for width in widths)
        return CostCurve(widths, (_PROMPT_ROWS,), (seconds,), row_s)


def calibrate(
    pair: Pair,
    max_rows: int,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Return the cost curve of `pair` up to `max_rows` rows, measured in about `budget_s`.

    Long contexts are not measured: what their rows add is reckoned from the time that a plain
    step takes for the bytes it reads, until rounds there are seen.
    """
    survey = Survey(max_rows, budget_s, clock)
    cache = pair.make_cache()
    prompt = [token % pair.target.shape.vocab_size for token in range(1, _PROMPT_ROWS + 2)]
    state = prefill(pair, cache, prompt, _PROMPT_ROWS, lambda done, total: True)
    assert state is not None
    rule = request_rule(SamplingConfig(), 0)
    plan = DecodeConfig(
        survey,
        rule,
        lambda tokens: StopDecision(len(tokens), False),
        pair.target.shape.context_length,
    )
    for _ in decode(pair, cache, state, plan):
        if survey.done:
            break
    step_s = survey.curve(0.0).at(1, _PROMPT_ROWS)
    shape = pair.target.shape
    return survey.curve(step_s * shape.row_bytes / max(shape.step_bytes, 1))


def _order(max_rows: int) -> Iterator[int]:
    """Yield the widths from 1 to `max_rows`, those that tell most about a machine first."""
    wanted = [1, min(5, max_rows), max_rows, 2, 3, max_rows // 2, 4, 6, *range(7, max_rows)]
    yield from dict.fromkeys(width for width in wanted if 1 <= width <= max_rows)
