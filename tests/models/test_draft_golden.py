"""The draft against the official implementation, on the small drafts of `tests/golden/`.

`scripts/make_golden.py` writes the data with the official `dflash` package and documents it.
"""

import mlx.core as mx
import pytest

from dflash_mlx.cache.context import ContextCache
from dflash_mlx.models.draft.dflash import BoundDraft
from tests.models.golden import CASES, assert_close, extend, load


def assert_round(draft: BoundDraft, expected: dict[str, mx.array], context: ContextCache) -> None:
    anchor, n_rows = expected["block"][0].item(), len(expected["block"])
    hidden = draft.hidden(anchor, n_rows, context)
    assert_close(hidden[0], expected["hidden"])
    if "logits" in expected:
        assert_close(draft.logits(hidden)[0], expected["logits"])
    assert draft.propose(anchor, n_rows, context).tokens[0].tolist() == expected["tokens"].tolist()


@pytest.mark.parametrize("name", CASES)
def test_rounds_equal_the_official_draft(name: str) -> None:
    """A wrong mask, rotation offset, scale or norm lowers acceptance and changes no output."""
    golden = load(name)
    context = golden.draft.make_context()
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows=64)
        assert_round(golden.draft, expected, context)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["mixed", "sliding", "full", "dflash2"])
def test_context_in_pieces_equals_context_at_once(name: str, rows: int) -> None:
    """Hidden states of a long prompt arrive in chunks and got wrong positions."""
    golden = load(name)
    context = golden.draft.make_context()
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows)
        assert_round(golden.draft, expected, context)


@pytest.mark.parametrize("earlier", [200, 241, 242, 248, 255, 256, 600])
def test_rows_before_the_window_change_nothing(earlier: int) -> None:
    """Rows outside the window stayed visible after its buffer had wrapped."""
    golden = load("sliding_open")
    context = golden.draft.make_context()
    width = golden.rounds[0]["features"].shape[1]
    extend(golden.draft, mx.ones((earlier, width)), context, rows=7)
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows=3)
        assert_round(golden.draft, expected, context)
