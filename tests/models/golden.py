"""The official implementation's rounds in `tests/golden/`, and our draft with their weights."""

import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.cache.context import ContextCache
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.tensor_names import runtime_name
from dflash_mlx.models.protocols import TargetShape

GOLDEN = Path(__file__).parent.parent / "golden"
TOLERANCE = 1e-4
"""Relative to the largest expected value: float32 rounding is near 1e-6, a wrong mask near 1."""


def configuration(name: str) -> dict:
    return json.loads((GOLDEN / name / "config.json").read_text())


CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
FIRST = [name for name in CASES if configuration(name)["architectures"] == ["DFlashDraftModel"]]
SECOND = [name for name in CASES if configuration(name)["architectures"] == ["DFlash2DraftModel"]]


class SharedParts:
    """The parts of a target that a draft shares: a scaled embedding and a head."""

    def __init__(self, tied: bool, scale: float) -> None:
        weights = mx.load(str(GOLDEN / "target.safetensors"))
        self.embedding = weights["embed_tokens.weight"].astype(mx.float32)
        head = self.embedding if tied else weights["lm_head.weight"].astype(mx.float32)
        self.projection = head.T
        self.scale = scale
        rows, dim = self.embedding.shape
        self.shape = TargetShape("shared parts", dim, 8, rows, 256, 1, 1)

    def embed(self, tokens: mx.array) -> mx.array:
        return self.embedding[tokens] * self.scale

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.projection


@dataclass(frozen=True)
class Golden:
    """One case: the bound draft, and the expected tensors of each round by name."""

    draft: BoundDraft
    rounds: list[dict[str, mx.array]]
    temperature: float | None


def load(name: str) -> Golden:
    tensors, metadata = mx.load(str(GOLDEN / name / "golden.safetensors"), return_metadata=True)
    facts = json.loads(metadata["facts"])
    rounds: list[dict[str, mx.array]] = [{} for _ in range(facts["rounds"])]
    for key, tensor in tensors.items():
        number, field = key.split(".")
        rounds[int(number)][field] = tensor
    weights = mx.load(str(GOLDEN / name / "model.safetensors"))
    model = draft_model(read_draft_config(configuration(name)), ())
    model.load_weights([(runtime_name(key), value) for key, value in weights.items()])
    model.set_dtype(mx.float32)
    target = SharedParts(facts["tied"], facts["target_scale"])
    return Golden(bind(model, target), rounds, facts["temperature"])


def extend(draft: BoundDraft, features: mx.array, context: ContextCache, rows: int) -> None:
    """Append the context rows of one round, at most `rows` at a time."""
    for first in range(0, len(features), rows):
        piece = features[None, first : first + rows].astype(mx.float32)
        draft.extend(piece, context.length, context)


def assert_close(got: mx.array, expected: mx.array) -> None:
    want = np.array(expected)
    np.testing.assert_allclose(np.array(got), want, rtol=0, atol=TOLERANCE * np.abs(want).max())
