"""The references that `--model` and `--draft` select."""

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.pairs.pairing import choose


def test_a_nickname_is_target_draft_and_revisions():
    """A nickname must select target, draft and their commits together."""
    choice = choose("qwen3-8b")
    assert choice.target == "Qwen/Qwen3-8B"
    assert choice.draft == "z-lab/Qwen3-8B-DFlash-b16"
    assert choice.draft_revision == "9b41424b7109f9c5413454f481b09a82b85333f4"
    assert choice.card.thinking is False


def test_the_hub_id_of_a_known_target_finds_its_draft():
    """The hub id of a known target found no draft."""
    assert choose("Qwen/Qwen3-8B").draft == "z-lab/Qwen3-8B-DFlash-b16"


def test_a_local_folder_wins_over_a_nickname(tmp_path, monkeypatch):
    """A local folder with the name of a nickname was ignored."""
    (tmp_path / "qwen3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    choice = choose("qwen3-8b")
    assert (choice.target, choice.card) == ("qwen3-8b", None)


def test_the_draft_inside_a_target_folder_is_used(tmp_path):
    """The draft in a folder made by `convert --draft` must be found."""
    (tmp_path / "draft").mkdir()
    assert choose(str(tmp_path)).draft == str(tmp_path / "draft")


def test_an_unknown_target_uses_plain_decoding_with_a_reason():
    """A missing draft without a reason looks like a draft without effect."""
    choice = choose("someone/some-model")
    assert choice.draft is None
    assert "no draft is known for someone/some-model" in choice.no_draft


def test_draft_none_has_no_reason():
    """`--draft none` was commented as if a draft were missing."""
    choice = choose("qwen3-8b", "none")
    assert (choice.draft, choice.no_draft) == (None, None)


def test_a_nickname_as_draft_selects_its_draft():
    """A nickname as --draft must select the draft of that pair."""
    assert choose("someone/some-model", "qwen3-8b").draft == "z-lab/Qwen3-8B-DFlash-b16"
    assert choose("qwen3-8b", "someone/draft").draft == "someone/draft"
    assert choose("qwen3-8b", "someone/draft").draft_revision is None


@pytest.mark.parametrize("draft", ["qwen3-8b", "z-lab/Qwen3-8B-DFlash-b16"])
def test_a_named_draft_keeps_the_commit_of_its_card(draft):
    """A named draft used another commit than the automatic one."""
    expected = choose("qwen3-8b").draft_revision
    assert choose("someone/some-model", draft).draft_revision == expected


@pytest.mark.parametrize(("model", "draft"), [("", "auto"), (" ", "auto"), ("qwen3-8b", "")])
def test_empty_names_are_refused(model, draft):
    """An empty name selected the working directory."""
    with pytest.raises(BadRequest, match="empty"):
        choose(model, draft)
