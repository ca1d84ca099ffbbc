"""A converted pair uses the thinking mode of its draft's training."""

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
    """A converted pair of a target with a thinking mode; its card gives no mode."""
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
def test_the_card_gives_the_default_thinking_mode(pair, trained):
    """A converted pair used another thinking mode than the known pair, at half the speed."""
    write_thinking(pair, trained)
    with load(str(pair)) as engine:
        assert engine.resolve().thinking is trained
        assert engine.resolve().notices == ()
        other = engine.resolve(GenerationConfig(thinking=not trained))
        assert other.thinking is not trained
        (notice,) = other.notices
        assert f"trained with thinking {'on' if trained else 'off'}" in notice


def test_the_mode_of_a_card_applies_to_its_draft_only(pair, tmp_path):
    """The card's training mode of one draft was applied to other drafts."""
    write_thinking(pair, False)
    run(draft_folder(tmp_path / "draft"), tmp_path / "other")
    with load(str(pair), str(tmp_path / "other")) as engine:
        assert engine.loaded.trained_thinking is None
    write_thinking(tmp_path / "other", True)
    with load(str(pair), str(tmp_path / "other")) as engine:
        assert engine.loaded.trained_thinking is True


def test_a_known_draft_keeps_its_mode(pair, tmp_path, monkeypatch):
    """A draft converted without its target lost the mode of the registry."""
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
    """Quantizing a pair again lost the mode of its draft."""
    write_thinking(pair, False)
    run(pair, tmp_path / "again", dequantize=True)
    assert Manifest.read(tmp_path / "again").thinking is False
