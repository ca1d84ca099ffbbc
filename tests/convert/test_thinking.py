"""A converted pair thinks, or does not, as its draft was trained to."""

import json

import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.load import load
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.manifest import Manifest
from tests.convert.checkpoints import draft_folder, run, target_folder

SAYS_MODE = "{{ messages[0]['content'] }}{{ ' on' if enable_thinking else ' off' }}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A converted pair of a target that can think; its card says no mode."""
    folder = tmp_path_factory.mktemp("pair")
    source = target_folder(folder / "target")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"<think>": 257, "</think>": 258}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    (source / "chat_template.jinja").write_text(SAYS_MODE)
    run(source, folder / "out", draft=str(draft_folder(folder / "draft")))
    return folder / "out"


def write_thinking(folder, thinking):
    table = json.loads((folder / "pair.json").read_text())
    (folder / "pair.json").write_text(json.dumps({**table, "thinking": thinking}))


@pytest.mark.parametrize("trained", [True, False])
def test_the_card_s_mode_is_the_default_and_another_is_warned_of(pair, trained):
    """A converted pair thought where the same pair by its nickname did not, at half the speed."""
    write_thinking(pair, trained)
    with load(str(pair)) as engine:
        assert engine.resolve().thinking is trained
        assert engine.resolve().notices == ()
        other = engine.resolve(GenerationConfig(thinking=not trained))
        assert other.thinking is not trained
        (notice,) = other.notices
        assert f"trained with thinking {'on' if trained else 'off'}" in notice


def test_a_draft_from_elsewhere_is_not_what_the_card_speaks_of(pair, tmp_path):
    """A card that says how one draft was trained was believed of every other."""
    write_thinking(pair, False)
    run(draft_folder(tmp_path / "draft"), tmp_path / "other")
    with load(str(pair), str(tmp_path / "other")) as engine:
        assert engine.loaded.trained_thinking is None
    write_thinking(tmp_path / "other", True)
    with load(str(pair), str(tmp_path / "other")) as engine:
        assert engine.loaded.trained_thinking is True


def test_a_known_draft_brings_its_mode_alone_or_in_a_pair(pair, tmp_path, monkeypatch):
    """A draft converted apart from its target lost the mode that the registry knows."""
    card = registry.find("qwen3-8b")
    monkeypatch.setattr(
        registry, "card_of_draft", lambda name: card if name == "known-draft" else None
    )
    draft = draft_folder(tmp_path / "known-draft")
    run(draft, tmp_path / "alone")
    run(target_folder(tmp_path / "target"), tmp_path / "both", draft=str(draft))
    assert Manifest.read(tmp_path / "alone").thinking is False
    assert Manifest.read(tmp_path / "both").thinking is False


def test_a_pair_converted_again_keeps_its_mode(pair, tmp_path):
    """Requantizing a pair made it forget how its draft was trained."""
    write_thinking(pair, False)
    run(pair, tmp_path / "again", dequantize=True)
    assert Manifest.read(tmp_path / "again").thinking is False
