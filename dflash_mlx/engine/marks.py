"""Marks in a text that comes in pieces: stop strings, the ends of a thought."""

from collections.abc import Sequence


def unfinished(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that may begin one of `marks`."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0
