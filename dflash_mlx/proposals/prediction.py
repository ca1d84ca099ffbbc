"""A predicted answer: proposes its next tokens, and finds the place again after a difference.

It must not know the prompt.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

_RESYNC_TOKENS = 4
"""Consecutive tokens that must agree to continue in the prediction after a difference. Shorter
runs, such as a line break and an indentation, occur in many places of a text."""


class Prediction:
    """Proposes the tokens of a predicted answer from its start.

    After a difference nothing is proposed until the last tokens of the answer occur in the
    prediction; the first occurrence after the previous place wins, else the last one before it.
    """

    name = "prediction"

    def __init__(self, predicted: Sequence[int]) -> None:
        self._predicted = list(predicted)
        self._next = 0  # index of the next predicted token
        self._match_length = 0
        self._synced = True
        self._recent: deque[int] = deque(maxlen=_RESYNC_TOKENS)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._beginnings: set[tuple[int, ...]] = set()
        for end in range(_RESYNC_TOKENS, len(self._predicted) + 1):
            run = tuple(self._predicted[end - _RESYNC_TOKENS : end])
            self._ends.setdefault(run, []).append(end)
            self._beginnings.add(run[:-1])

    @property
    def match_length(self) -> int:
        """Number of last tokens that agree with the prediction; 0 after a difference.

        At the start of the answer it is `_RESYNC_TOKENS`, as the caller vouches for that place.
        """
        return _RESYNC_TOKENS + self._match_length if self._synced else 0

    @property
    def next_match_length(self) -> int:
        """The largest match length after one more token."""
        if self._synced:
            return self.match_length + 1
        last = tuple(self._recent)[1 - _RESYNC_TOKENS :]
        return _RESYNC_TOKENS if last in self._beginnings else 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens of the answer."""
        for token in tokens:
            self._recent.append(token)
            expected = self._next < len(self._predicted) and self._predicted[self._next] == token
            if self._synced and expected:
                self._next += 1
                self._match_length += 1
            else:
                self._resync()

    def propose(self, n_tokens: int) -> list[int]:
        """Return up to `n_tokens` of the prediction's next tokens."""
        return self._predicted[self._next : self._next + n_tokens] if self._synced else []

    def _resync(self) -> None:
        ends = self._ends.get(tuple(self._recent), [])
        self._synced, self._match_length = bool(ends), 0
        if ends:
            after = bisect_left(ends, self._next)
            self._next = ends[min(after, len(ends) - 1)]
