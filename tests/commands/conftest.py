"""Fixtures for the command line: a tiny pair instead of a loaded one, and an empty home."""

import pytest

from dflash_mlx.engine.engine import Engine
from tests.commands import tiny_pair


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home folder: no settings, hub cache or history."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


class SharedEngine(Engine):
    """An engine that all tests share; `close` keeps it open."""

    def close(self):
        """Keep the engine open for the next test."""


@pytest.fixture(scope="session")
def shared_engine():
    """The tiny pair, loaded."""
    made = tiny_pair.load("smollm2-135m")
    yield SharedEngine(made.loaded, made.worker)
    made.close()


@pytest.fixture
def loads(home, monkeypatch, shared_engine):
    """Make commands load the tiny pair; the value lists the (model, draft) names they load."""
    requested = []

    def load(model, draft="auto", cache=None, hooks=None, kernels="auto", dtype="auto"):
        requested.append((model, draft))
        if (model, draft) == ("smollm2-135m", "auto"):
            return shared_engine
        return tiny_pair.load(model, draft, cache, hooks)

    monkeypatch.setattr("dflash_mlx.engine.load.load", load)
    return requested
