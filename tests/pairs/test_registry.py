"""Pair cards: nicknames, look-ups and validation."""

import re
from dataclasses import fields

import pytest

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from dflash_mlx.pairs import registry
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.pairs.registry import card_for, cards, find, read_card, similar_names

CARD = 'nickname = "a"\ntarget = "org/a"\nfamily = "llama"\ndraft = "org/d"\n'
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def test_every_card_has_a_supported_family() -> None:
    """A nickname of an unsupported family was refused after the download."""
    assert {card.family for card in cards()} <= MLX_LM_MODULES.keys()
    assert len(cards()) == 25


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.nickname)
def test_a_card_names_valid_references(card: PairCard) -> None:
    """A typo in a card appears to a user as a missing repository."""
    for reference in (card.target, card.draft, card.fallback, *card.targets):
        assert reference is None or HUB_ID.fullmatch(reference) or ":" in reference
    for revision in (card.target_revision, card.draft_revision):
        assert revision is None or re.fullmatch(r"[0-9a-f]{40}", revision)
    assert card.block_size is None or card.block_size >= 2


def test_a_target_with_two_drafts_gets_the_first_card() -> None:
    """The draft of a target must not depend on the order of files in a folder."""
    card = card_for("Qwen/Qwen3-8B")
    assert card is not None
    assert card.nickname == "qwen3-8b"


def test_non_thinking_drafts_are_marked() -> None:
    """With thinking on, a draft trained without it accepts about half as much."""
    assert {card.nickname for card in cards() if card.thinking is False} == {"qwen3-4b", "qwen3-8b"}


def test_a_name_is_found_in_any_case_and_by_alias() -> None:
    """The spelling SmolLM2-135M was refused."""
    card = find("smollm2-135m")
    assert card is not None
    assert find("SmolLM2-135M") is card
    assert find("smollm2") is card
    assert find("smollm") is None


@pytest.mark.parametrize("repository", ["Qwen/Qwen3-4B", "mlx-community/qwen3-4b-8bit"])
def test_a_target_given_by_its_hub_id_finds_its_draft(repository: str) -> None:
    """`--draft auto` found nothing for the target that the card names."""
    card = card_for(repository)
    assert card is not None
    assert card.nickname == "qwen3-4b"


def test_the_original_of_the_embedded_target_finds_the_same_draft() -> None:
    """Without the wheel the fallback ran without a draft."""
    assert card_for("HuggingFaceTB/SmolLM2-135M-Instruct") is find("smollm2-135m")
    assert card_for("org/unknown") is None


def test_similar_names_are_few() -> None:
    """A typo was answered with all names, or with none."""
    assert similar_names("qwen3-4")[0] == "qwen3-4b"
    assert len(similar_names("qwen3-4")) == 3
    assert similar_names("SMOLLM") == ["smollm2-135m"]
    assert similar_names("zzzz") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CARD + 'quantisation = "4"', "c.toml has unknown keys quantisation; the known keys are"),
        (CARD.replace('draft = "org/d"\n', ""), "c.toml lacks draft"),
        (CARD + "block_size = true", "c.toml: block_size is True; it needs a whole number"),
        (CARD + 'block_size = "8"', "c.toml: block_size is '8'"),
        (CARD + 'aliases = ["b", 3]', "c.toml: aliases is"),
        (CARD + "nickname =", "c.toml is not TOML"),
    ],
)
def test_a_card_that_is_wrong_is_named(text: str, complaint: str) -> None:
    """A misspelled key was ignored and the default applied."""
    with pytest.raises(BadCheckpoint, match=re.escape(complaint)):
        read_card(text, "c.toml")


def test_a_card_can_set_every_field_of_a_pair() -> None:
    """A field of PairCard could not be set in a card."""
    known = registry._REQUIRED | registry._OPTIONAL
    assert known.keys() == {field.name for field in fields(PairCard)}


def test_two_cards_cannot_have_one_name() -> None:
    """The pair of a nickname depended on the order of files in a folder."""
    pair = (read_card(CARD, "a"), read_card(CARD.replace('"a"', '"b"') + 'aliases = ["A"]', "b"))
    with pytest.raises(BadCheckpoint, match="both have the name 'a'"):
        registry._refuse_shared_names(pair)
