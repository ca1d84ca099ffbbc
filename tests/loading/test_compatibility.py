"""One check of draft and target, for models in memory and for configurations before a download."""

import pytest

from dflash_mlx.errors import BadCheckpoint, PairMismatch
from dflash_mlx.loading.compatibility import (
    ConfiguredDimensions,
    check_pair,
    configured_dimensions,
)
from dflash_mlx.models.draft.config_file import read_draft_config
from tests.tiny import tiny_target
from tests.tiny_configs import CONFIGS, PUBLISHED

DRAFT = read_draft_config(PUBLISHED)
FITS = ConfiguredDimensions(hidden_size=32, n_layers=3, vocab_size=260)


@pytest.mark.parametrize("name", CONFIGS)
def test_configured_dimensions_are_those_of_the_loaded_target(name):
    """The converter and the runtime disagreed on which pairs fit."""
    shape = tiny_target(name).shape
    found = configured_dimensions(CONFIGS[name], "a file")
    assert (found.hidden_size, found.n_layers) == (shape.hidden_size, shape.n_layers)
    assert found.vocab_size in (shape.vocab_size, None)


@pytest.mark.parametrize("target", [FITS, tiny_target().shape])
def test_a_pair_that_fits_passes(target):
    """Shapes of loaded targets and configured dimensions go through the same check."""
    check_pair(DRAFT, target, "a draft")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ConfiguredDimensions(64, 3, 260), "hidden size 32, its target has 64"),
        (ConfiguredDimensions(32, 4, 260), "target layers 3, its target has 4"),
        (ConfiguredDimensions(32, 3, 4096), "a vocabulary of 260, its target has 4096"),
        (ConfiguredDimensions(32, 3, 200), "masks with token 257, its target has 200 tokens"),
    ],
)
def test_a_dimension_that_differs_is_named(target, words):
    """A pair of other dimensions loaded and accepted no token, or failed in a forward pass."""
    with pytest.raises(PairMismatch, match=f"a draft .*{words}"):
        check_pair(DRAFT, target, "a draft", "its target")


def test_an_unknown_vocabulary_is_not_compared():
    """Published Gemma 3 configurations do not hold it."""
    check_pair(DRAFT, ConfiguredDimensions(32, 3, None), "a draft")


@pytest.mark.parametrize("config", [{}, {"hidden_size": "x"}, {"text_config": {}}])
def test_a_missing_size_is_named(config):
    """Comparing with None gave a message about a target of None layers."""
    with pytest.raises(BadCheckpoint, match="hidden_size is"):
        configured_dimensions(config, "a file")
