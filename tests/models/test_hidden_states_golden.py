"""A target's hidden states against the official feature extraction, on small models.

`scripts/golden_targets.py` writes `tests/golden/targets/`.
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from dflash_mlx.models.targets.families import family_of

TARGETS = Path(__file__).parent.parent / "golden" / "targets"
FAMILIES = sorted(path.name for path in TARGETS.iterdir())


@pytest.mark.parametrize("chunk", [40, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_the_official_features(family: str, chunk: int) -> None:
    """Hidden states of the wrong layer lower acceptance and change no text."""
    golden, metadata = mx.load(str(TARGETS / family / "golden.safetensors"), return_metadata=True)
    model, _ = load_model(TARGETS / family)
    model.set_dtype(mx.float32)
    target = family_of(family, family)(model)
    caches = target.make_caches()
    features, logits = [], []
    tokens = golden["tokens"][None]
    for first in range(0, tokens.shape[1], chunk):
        output = target.forward(
            tokens[:, first : first + chunk], caches, json.loads(metadata["taps"])
        )
        for cache in caches:
            cache.commit(output.hidden.shape[1])
        features.append(output.features[0])
        logits.append(target.logits(output.hidden)[0])
    assert_close(mx.concatenate(features), golden["features"])
    assert_close(mx.concatenate(logits), golden["logits"])


def assert_close(got: mx.array, expected: mx.array) -> None:
    want = np.array(expected)
    np.testing.assert_allclose(np.array(got), want, rtol=0, atol=1e-4 * np.abs(want).max())
