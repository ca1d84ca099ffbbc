"""Measures the cost of rounds on this machine, by decoding nonsense with each block size.

It must not know what is done with the costs.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.decode.greedy import greedy_rounds
from dflash_mlx.decode.round import Round
from dflash_mlx.models.pair import Pair

BUDGET_S = 1.6
"""Seconds of a calibration, so that loading a pair takes less than two seconds longer. A round
that has begun is finished."""

_PROMPT_TOKENS = 16
"""Tokens of the prompt: short, because attention over it is not what is measured."""

_WARM_UP_ROUNDS = 1
"""Rounds of a block size that are not counted: the first of a shape may compile kernels."""

_MEASURED_ROUNDS = 3
"""Rounds of a block size that are measured: the smallest number whose median drops an outlier."""

_MIN_BLOCK_SIZES = 2
"""Block sizes measured even if the time is up: a ratio needs plain steps and one other."""


class CalibrationPolicy:
    """A policy that measures one block size after another until its time is up."""

    disabled_reason = None
    disabled_for_request = False

    def __init__(self, max_block_size: int, budget_s: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + budget_s
        self._seconds: dict[int, list[float]] = defaultdict(list)
        self._block_sizes = _order(max_block_size)
        self._block_size = next(self._block_sizes)
        self._remaining = _WARM_UP_ROUNDS + _MEASURED_ROUNDS
        self.done = False

    def next_block_size(self, context_length: int) -> int:
        """Return the block size being measured."""
        return self._block_size

    def next_step_is_plain(self) -> bool:
        """Return whether another plain step follows, as in plain decoding."""
        return self._block_size == 1 and self._remaining > 1

    def times_draft(self) -> bool:
        """Return False: drafts are not timed separately."""
        return False

    def launches_next_draft_early(self) -> bool:
        """Return False: drafts are not launched early."""
        return False

    def observe(self, done: Round) -> None:
        """Record a round's time; change to the next block size after enough rounds."""
        self._remaining -= 1
        if self._remaining < _MEASURED_ROUNDS and done.measures_one_round:
            self._seconds[done.drafted + 1].append(done.seconds)
        late = bool(self._seconds[self._block_size]) and self._clock() >= self._deadline
        if self._remaining and not late:
            return
        block_size = next(self._block_sizes, None)
        enough = len(self._seconds) >= _MIN_BLOCK_SIZES
        self.done = block_size is None or (self._clock() >= self._deadline and enough)
        self._block_size = block_size or 1
        self._remaining = _WARM_UP_ROUNDS + _MEASURED_ROUNDS

    def curve(self, context_token_s: float) -> CostCurve:
        """Return the medians of the measured times."""
        block_sizes = tuple(sorted(size for size, times in self._seconds.items() if times))
        seconds = tuple(median(self._seconds[size]) for size in block_sizes)
        return CostCurve(block_sizes, (_PROMPT_TOKENS,), (seconds,), context_token_s)


def calibrate(
    pair: Pair,
    max_block_size: int,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Return the cost curve of `pair` up to `max_block_size`, measured in about `budget_s`.

    The calibration runs the decode loop, so a round contains what a real one contains: draft,
    verification, overhead and host work. Long contexts are not measured: the cost of a context
    token is estimated from the bytes it adds to a plain step, until rounds there are observed.
    """
    policy = CalibrationPolicy(max_block_size, budget_s, clock)
    prompt = [token % pair.target.shape.vocab_size for token in range(1, _PROMPT_TOKENS + 2)]
    for _ in greedy_rounds(pair, prompt, pair.target.shape.context_length, policy):
        if policy.done:
            break
    step_s = policy.curve(0.0).at(1, _PROMPT_TOKENS)
    shape = pair.target.shape
    return policy.curve(step_s * shape.row_bytes / max(shape.step_bytes, 1))


def _order(max_block_size: int) -> Iterator[int]:
    """Yield the block sizes from 1 to `max_block_size`, the most informative first.

    Plain steps and the two ends come first; 5 is the last size before kernels for small matrices
    stop on most machines. Whatever the time does not suffice for is interpolated.
    """
    order = [1, min(5, max_block_size), max_block_size, 2, 3, max_block_size // 2, 4, 6]
    order += range(7, max_block_size)
    yield from dict.fromkeys(size for size in order if 1 <= size <= max_block_size)
