"""Fixtures for every test: one tiny target, and mlx-lm's answer to one prompt with it."""

from collections.abc import Iterator

import pytest

from dflash_mlx.models.targets.decoder import DecoderTarget
from tests.tiny import PROMPT, plain, tiny_target

LENGTH = 256
"""Tokens of `tiny_answer`. Tests decode at most 128, so an oracle draft never runs out of text."""


@pytest.fixture(scope="session", autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary settings folder, so that costs of tiny models are not stored for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


@pytest.fixture(scope="session")
def target() -> DecoderTarget:
    """The tiny `qwen3` target."""
    return tiny_target("qwen3")


@pytest.fixture(scope="session")
def tiny_answer(target: DecoderTarget) -> list[int]:
    """The greedy answer of mlx-lm alone to `PROMPT` with `target`."""
    return plain(target.model, PROMPT, LENGTH)
