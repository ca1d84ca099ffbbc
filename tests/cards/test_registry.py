"""Nicknames: what they stand for, how they are found, and what a card may say."""

import re
from dataclasses import fields

import pytest

from dflash_mlx.cards import registry
from dflash_mlx.cards.registry import card_for, cards, find, near, read_card
from dflash_mlx.config import PairCard
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.families import FAMILIES

CARD = 'nickname = "a"\ntarget = "org/a"\nfamily = "llama"\ndraft = "org/d"\n'
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def test_the_cards_are_those_whose_families_run() -> None:
    """A nickname that is offered and refused after the download."""
    walked = {name for family in FAMILIES for name in family.model_types}
    assert {card.family for card in cards()} <= walked
    assert len(cards()) == 25


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.nickname)
def test_a_card_names_what_can_be_fetched(card: PairCard) -> None:
    """A typing error in a card is met by a user, as a repository that does not exist."""
    for reference in (card.target, card.draft, card.fallback, *card.targets):
        assert reference is None or HUB_ID.fullmatch(reference) or ":" in reference
    for revision in (card.target_revision, card.draft_revision):
        assert revision is None or re.fullmatch(r"[0-9a-f]{40}", revision)
    assert card.block is None or card.block >= 2


def test_a_target_with_two_drafts_gets_the_one_of_its_own_name() -> None:
    """Which draft a target gets must not depend on the order of files in a folder."""
    card = card_for("Qwen/Qwen3-8B")
    assert card is not None
    assert card.nickname == "qwen3-8b"


def test_the_non_thinking_drafts_say_so() -> None:
    """Thinking left on halves the tokens per round of a draft that never saw it."""
    assert {card.nickname for card in cards() if card.thinking is False} == {"qwen3-4b", "qwen3-8b"}


def test_a_name_is_found_in_any_case_and_by_alias() -> None:
    """'SmolLM2-135M' is refused with the hint to write smollm2-135m."""
    card = find("smollm2-135m")
    assert card is not None
    assert find("SmolLM2-135M") is card
    assert find("smollm2") is card
    assert find("smollm") is None


@pytest.mark.parametrize("repository", ["Qwen/Qwen3-4B", "mlx-community/qwen3-4b-8bit"])
def test_a_target_given_by_its_hub_id_finds_its_draft(repository: str) -> None:
    """`--draft auto` finds nothing for the very target that the card names."""
    card = card_for(repository)
    assert card is not None
    assert card.nickname == "qwen3-4b"


def test_the_embedded_targets_original_finds_the_same_draft() -> None:
    """Without the wheel the fallback runs plain, as if no draft existed."""
    assert card_for("HuggingFaceTB/SmolLM2-135M-Instruct") is find("smollm2-135m")
    assert card_for("org/unknown") is None


def test_near_names_are_few_and_sensible() -> None:
    """A typo answered with every name there is, or with none."""
    assert near("qwen3-4")[0] == "qwen3-4b"
    assert len(near("qwen3-4")) == 3
    assert near("SMOLLM") == ["smollm2-135m"]
    assert near("zzzz") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CARD + 'quantisation = "4"', "c.toml has unknown keys quantisation; a card knows"),
        (CARD.replace('draft = "org/d"\n', ""), "c.toml lacks draft"),
        (CARD + "block = true", "c.toml: block is True; it needs a whole number"),
        (CARD + 'block = "8"', "c.toml: block is '8'"),
        (CARD + 'aliases = ["b", 3]', "c.toml: aliases is"),
        (CARD + "nickname =", "c.toml is no TOML"),
    ],
)
def test_a_card_that_is_wrong_is_named(text: str, complaint: str) -> None:
    """A misspelled key is ignored, and the pair runs with a default nobody chose."""
    with pytest.raises(BadCheckpoint, match=re.escape(complaint)):
        read_card(text, "c.toml")


def test_a_card_can_say_everything_that_a_pair_has() -> None:
    """A field is added to PairCard and no card can set it."""
    known = registry._REQUIRED | registry._OPTIONAL
    assert known.keys() == {field.name for field in fields(PairCard)}


def test_two_cards_cannot_claim_one_name() -> None:
    """Which pair a nickname means depends on the order of files in a folder."""
    pair = (read_card(CARD, "a"), read_card(CARD.replace('"a"', '"b"') + 'aliases = ["A"]', "b"))
    with pytest.raises(BadCheckpoint, match="both claim 'a'"):
        registry._refuse_shared_names(pair)
