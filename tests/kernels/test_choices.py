"""Choices: the lookup of selected geometries by rows and keys."""

from __future__ import annotations

from dflash_mlx.kernels.choices import AttentionChoices, Choices
from dflash_mlx.metal.attention_geometry import AttentionGeometry

SHORT, LONG = AttentionGeometry(2, 1, 16, 256), AttentionGeometry(8, 1, 16, 256)


def test_selecting_stock_mlx_removes_a_choice() -> None:
    """A kernel that a later result rejects must no longer be launched."""
    choices: Choices[AttentionGeometry] = Choices()
    choices.select(range(2, 5), SHORT)
    choices.select(range(3, 5), None)
    assert [choices.at(rows) for rows in range(1, 6)] == [None, SHORT, None, None, None]


def test_a_choice_holds_up_to_the_next_tuned_number_of_keys() -> None:
    """The fastest geometry at 1,024 keys may be slower than stock MLX at 64 and at 4,096."""
    choices = AttentionChoices((1024, 4096))
    choices.by_keys[1024].select(range(2, 9), SHORT)
    choices.by_keys[4096].select(range(2, 5), LONG)
    found = [choices.at(4, keys) for keys in (5, 1023, 1024, 4095, 4096, 100_000)]
    assert found == [None, None, SHORT, SHORT, LONG, LONG]
    assert choices.at(8, 4096) is None
