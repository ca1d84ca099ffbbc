"""Where layers look up what the gate settled."""

from __future__ import annotations

from dflash_mlx.kernels.choices import AttentionChoices, Choices
from dflash_mlx.metal.attention_geometry import AttentionGeometry

SHORT, LONG = AttentionGeometry(2, 1, 16, 256), AttentionGeometry(8, 1, 16, 256)


def test_stock_mlx_takes_a_choice_back() -> None:
    """A kernel that lost a later race must not go on being launched."""
    choices: Choices[AttentionGeometry] = Choices()
    choices.settle(range(2, 5), SHORT)
    choices.settle(range(3, 5), None)
    assert [choices.at(rows) for rows in range(1, 6)] == [None, SHORT, None, None, None]


def test_a_choice_holds_up_to_the_next_raced_number_of_keys() -> None:
    """What wins at 1,024 keys may lose at 64, and another geometry may win at 4,096."""
    choices = AttentionChoices((1024, 4096))
    choices.by_keys[1024].settle(range(2, 9), SHORT)
    choices.by_keys[4096].settle(range(2, 5), LONG)
    found = [choices.at(4, keys) for keys in (5, 1023, 1024, 4095, 4096, 100_000)]
    assert found == [None, None, SHORT, SHORT, LONG, LONG]
    assert choices.at(8, 4096) is None
