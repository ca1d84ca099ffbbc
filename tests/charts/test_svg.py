"""The axes of plots."""

import re

import pytest

from dflash_mlx.charts.svg import Series, lines

TICK = re.compile(r">(-?[\d.]+)</text>")


@pytest.mark.parametrize(
    ("xs", "expected"),
    [((1, 2, 3), ["1", "2", "3"]), ((0.5, 1.0, 1.5), ["0.6", "0.8", "1", "1.2", "1.4"])],
)
def test_positions_are_whole(xs, expected):
    """Acceptance by position had ticks at 1.5 and 2.5, which are not positions."""
    page = lines("title", "position", "share", [Series("a", [(x, 0.0) for x in xs])])
    assert TICK.findall(page)[-len(expected) :] == expected
