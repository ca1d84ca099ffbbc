"""Fixtures for every test: one tiny target, made once, and what mlx-lm makes of a prompt."""

from collections.abc import Iterator

import pytest

from dflash_mlx.models.targets.decoder import DecoderTarget
from tests.tiny import PROMPT, plain, tiny_target

LENGTH = 256
"""Tokens of `tiny_answer`: a full answer and what an oracle may propose behind it."""


@pytest.fixture(scope="session", autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A settings folder of the run's own: costs learned from tiny models are nobody's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


@pytest.fixture(scope="session")
def target() -> DecoderTarget:
    """The tiny `qwen3` target."""
    return tiny_target("qwen3")


@pytest.fixture(scope="session")
def tiny_answer(target: DecoderTarget) -> list[int]:
    """What mlx-lm alone writes behind `PROMPT` with `target`, greedily."""
    return plain(target.model, PROMPT, LENGTH)
