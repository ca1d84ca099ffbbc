"""The list of models on this machine, made without network access."""

import json

import pytest

from dflash_mlx.hub.inventory import bytes_of, cached_here, converted_here, pairs_here
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import converted, registry
from dflash_mlx.pairs.manifest import FILE

COMMIT = "1" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the folder of an empty hub cache; network access fails."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def refuse(*arguments, **options):
        raise AssertionError("network access")

    monkeypatch.setattr("socket.socket.connect", refuse)
    return tmp_path / "hub"


def put(cache, name, config, n_bytes=1000, commit=COMMIT):
    """Create a complete repository in the cache, in huggingface_hub's layout."""
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps(config))
    (snapshot / "model.safetensors").write_bytes(bytes(n_bytes))
    (snapshot / "tokenizer.json").write_text("{}")
    return snapshot


def test_every_card_is_listed(cache, tmp_path):
    """A list of local models only hides what can be downloaded."""
    pairs = pairs_here(Pins(tmp_path))
    assert [pair.card for pair in pairs] == list(registry.cards())
    assert all(pair.target.path is None for pair in pairs if "/" in pair.card.nickname)


def test_a_cached_target_is_listed_with_its_size(cache, tmp_path):
    """A user must see that a target is already downloaded."""
    card = registry.find("qwen3-4b")
    put(cache, card.target, {"model_type": "qwen3"}, 4321, card.target_revision)
    pair = next(pair for pair in pairs_here(Pins(tmp_path)) if pair.card is card)
    assert pair.target.n_bytes == 4321
    assert (pair.draft.path, pair.draft.n_bytes) == (None, None)


def test_another_build_of_a_target_is_listed(cache, tmp_path):
    """An 8-bit build works with the same draft."""
    card = registry.find("qwen3-4b")
    put(cache, card.targets[0], {"model_type": "qwen3"})
    pair = next(pair for pair in pairs_here(Pins(tmp_path)) if pair.card is card)
    assert [item.reference for item in pair.targets] == [card.targets[0]]


def test_other_cached_models_are_classified(cache):
    """Vision models in the cache were listed as targets."""
    put(cache, "me/target", {"model_type": "qwen3"})
    put(cache, "me/draft", {"architectures": ["DFlashDraftModel"], "dflash_config": {}})
    put(cache, "me/vision", {"model_type": "clip"})
    put(cache, "me/known", {"model_type": "qwen3"})
    (put(cache, "me/partial", {"model_type": "qwen3"}) / "model.safetensors").unlink()
    (put(cache, "me/broken", {}) / "config.json").write_text("{")
    found = [(item.reference, kind) for item, kind in cached_here({"me/known"})]
    assert found == [("me/draft", "draft"), ("me/target", "target")]


def test_a_missing_cache_is_empty(cache):
    """On a fresh machine the cache folder does not exist."""
    assert cached_here(set()) == []


def test_converted_folders_are_listed(tmp_path):
    """Converted folders can be anywhere on the disk."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / FILE).write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(10))
    converted.remember(folder, tmp_path)
    assert [(item.path, item.n_bytes) for item in converted_here(Pins(tmp_path))] == [(folder, 10)]


def test_bytes_of_a_file_and_of_a_folder(tmp_path):
    """The folder of a pair contains the draft one level below."""
    (tmp_path / "draft").mkdir()
    for name in ("model.safetensors", "draft/model.safetensors", "README.md"):
        (tmp_path / name).write_bytes(bytes(5))
    assert bytes_of(tmp_path) == 10
    assert bytes_of(tmp_path / "README.md") == 5
