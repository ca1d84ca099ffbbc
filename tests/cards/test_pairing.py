"""What `--model` and `--draft` stand for."""

import pytest

from dflash_mlx.cards.pairing import choose
from dflash_mlx.errors import BadRequest


def test_a_nickname_is_target_draft_and_revisions():
    """A pair that is put together by hand is put together wrong."""
    choice = choose("qwen3-8b")
    assert choice.target == "Qwen/Qwen3-8B"
    assert choice.draft == "z-lab/Qwen3-8B-DFlash-b16"
    assert choice.draft_revision == "9b41424b7109f9c5413454f481b09a82b85333f4"
    assert choice.card.thinking is False


def test_the_hub_id_of_a_known_target_finds_its_draft():
    """Users expect the draft to be found, as documents of peers promised."""
    assert choose("Qwen/Qwen3-8B").draft == "z-lab/Qwen3-8B-DFlash-b16"


def test_a_local_folder_wins_over_a_nickname(tmp_path, monkeypatch):
    """A folder of one's own that happens to be called like a nickname was ignored."""
    (tmp_path / "qwen3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    choice = choose("qwen3-8b")
    assert (choice.target, choice.card) == ("qwen3-8b", None)


def test_a_draft_beside_a_converted_target_belongs_to_it(tmp_path):
    """A folder made by `convert --draft` needs no further word."""
    (tmp_path / "draft").mkdir()
    assert choose(str(tmp_path)).draft == str(tmp_path / "draft")


def test_an_unknown_target_decodes_plainly_and_says_so():
    """A draft that is silently not there looks like one that does not help."""
    choice = choose("someone/some-model")
    assert choice.draft is None
    assert "no draft is known for someone/some-model" in choice.no_draft


def test_no_draft_is_a_choice_that_needs_no_comment():
    """`--draft none` is what plain decoding is called."""
    choice = choose("qwen3-8b", "none")
    assert (choice.draft, choice.no_draft) == (None, None)


def test_a_draft_may_be_named_like_a_model():
    """The draft of another nickname is a draft too."""
    assert choose("someone/some-model", "qwen3-8b").draft == "z-lab/Qwen3-8B-DFlash-b16"
    assert choose("qwen3-8b", "someone/draft").draft == "someone/draft"
    assert choose("qwen3-8b", "someone/draft").draft_revision is None


@pytest.mark.parametrize("draft", ["qwen3-8b", "z-lab/Qwen3-8B-DFlash-b16"])
def test_a_named_draft_keeps_the_commit_that_its_card_gives(draft):
    """Naming the draft that belongs to a model took another commit than not naming it."""
    expected = choose("qwen3-8b").draft_revision
    assert choose("someone/some-model", draft).draft_revision == expected


@pytest.mark.parametrize(("model", "draft"), [("", "auto"), (" ", "auto"), ("qwen3-8b", "")])
def test_empty_names_are_refused(model, draft):
    """An empty name once meant the folder one stands in."""
    with pytest.raises(BadRequest, match="empty"):
        choose(model, draft)
