"""The draft against the official implementation, on the small drafts of `tests/golden/`.

`scripts/make_golden.py` made the data with the official `dflash` package and tells its layout.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.cache.context import ContextCache
from dflash_mlx.models.draft import BoundDraft, DraftModel
from dflash_mlx.models.draft_config import read_draft_config

GOLDEN = Path(__file__).parent.parent / "golden"
TOLERANCE = 1e-4
"""Of the largest expected value: float32 rounding stays near 1e-6, a wrong mask near 1."""


def configuration(name: str) -> dict:
    return json.loads((GOLDEN / name / "config.json").read_text())


CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
FIRST = [name for name in CASES if configuration(name)["architectures"] == ["DFlashDraftModel"]]


class Lender:
    """As much of a target as a draft borrows: an embedding, scaled, and a head."""

    def __init__(self, tied: bool, scale: float) -> None:
        weights = mx.load(str(GOLDEN / "target.safetensors"))
        self.embedding = weights["embed_tokens.weight"].astype(mx.float32)
        head = self.embedding if tied else weights["lm_head.weight"].astype(mx.float32)
        self.projection = head.T
        self.scale = scale

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding[tokens] * self.scale

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.projection


@dataclass(frozen=True)
class Golden:
    """One case: the bound draft, and the tensors of each round by name."""

    draft: BoundDraft
    rounds: list[dict[str, mx.array]]


def load(name: str) -> Golden:
    tensors, metadata = mx.load(str(GOLDEN / name / "golden.safetensors"), return_metadata=True)
    facts = json.loads(metadata["facts"])
    rounds: list[dict[str, mx.array]] = [{} for _ in range(facts["rounds"])]
    for key, tensor in tensors.items():
        number, field = key.split(".")
        rounds[int(number)][field] = tensor
    model = DraftModel(read_draft_config(configuration(name)), False, False)
    model.load_weights(str(GOLDEN / name / "model.safetensors"))
    model.set_dtype(mx.float32)
    target = Lender(facts["tied"], facts["target_scale"])
    return Golden(BoundDraft(model, target), rounds)


def extend(draft: BoundDraft, features: mx.array, context: ContextCache, rows: int) -> None:
    """Append context rows of one round, at most `rows` of them at a time."""
    for first in range(0, len(features), rows):
        piece = features[None, first : first + rows].astype(mx.float32)
        draft.extend(piece, context.length, context)


def assert_round(draft: BoundDraft, expected: dict[str, mx.array], context: ContextCache) -> None:
    anchor, n_rows = expected["block"][0].item(), len(expected["block"])
    hidden = draft.hidden(anchor, n_rows, context)
    assert_close(hidden[0], expected["hidden"])
    if "logits" in expected:
        assert_close(draft.logits(hidden)[0], expected["logits"])
    assert draft.propose(anchor, n_rows, context).tokens[0].tolist() == expected["tokens"].tolist()


def assert_close(got: mx.array, expected: mx.array) -> None:
    want = np.array(expected)
    np.testing.assert_allclose(np.array(got), want, rtol=0, atol=TOLERANCE * np.abs(want).max())


@pytest.mark.parametrize("name", FIRST)
def test_rounds_equal_the_official_draft(name: str) -> None:
    """A mask, a rotation offset, a scale or a norm that is off only lowers acceptance: no output
    of the engine would ever look wrong."""
    golden = load(name)
    context = golden.draft.make_context()
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows=64)
        assert_round(golden.draft, expected, context)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["mixed", "sliding", "full"])
def test_context_in_pieces_equals_context_at_once(name: str, rows: int) -> None:
    """A long prompt's features come chunk by chunk, and must land at the same positions."""
    golden = load(name)
    context = golden.draft.make_context()
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows)
        assert_round(golden.draft, expected, context)


@pytest.mark.parametrize("earlier", [200, 241, 242, 248, 255, 256, 600])
def test_rows_before_the_window_change_nothing(earlier: int) -> None:
    """In a long chat the window's buffer is full again and again; what left it must not be seen,
    and positions far from zero rotate queries and keys alike."""
    golden = load("sliding_open")
    context = golden.draft.make_context()
    width = golden.rounds[0]["features"].shape[1]
    extend(golden.draft, mx.ones((earlier, width)), context, rows=7)
    for expected in golden.rounds:
        extend(golden.draft, expected["features"], context, rows=3)
        assert_round(golden.draft, expected, context)
