"""Snapshots that a conversation may come back to: the last few, by how many rows there were."""

from collections.abc import Iterator
from typing import Generic, TypeVar

Kept = TypeVar("Kept")

_MOST = 2
"""Snapshots kept: this turn's and the last one's, should this one be asked anew."""


class Snapshots(Generic[Kept]):
    """What is kept of the last places, each with its length in rows."""

    def __init__(self) -> None:
        self._places: list[tuple[int, Kept]] = []  # by length, ascending

    def __iter__(self) -> Iterator[Kept]:
        return (kept for _, kept in self._places)

    def add(self, length: int, kept: Kept) -> None:
        """Keep a place; those at or behind it are of another past."""
        self._places = [*self._before(length - 1), (length, kept)][-_MOST:]

    def back_to(self, length: int) -> tuple[int, Kept] | None:
        """Forget the places behind `length` rows; return the last that is left, if one is."""
        self._places = self._before(length)
        return self._places[-1] if self._places else None

    def forget(self) -> None:
        """Give up all places."""
        self._places = []

    def _before(self, length: int) -> list[tuple[int, Kept]]:
        return [place for place in self._places if place[0] <= length]
