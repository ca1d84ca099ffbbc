"""Thoughts are separated from the answer for every way of cutting the text into pieces."""

import pytest

from dflash_mlx.engine.thinking import ThinkingSplitter

MARKS = ("<think>", "</think>")


def split(text, size, inside=False):
    splitter = ThinkingSplitter(MARKS, inside)
    pieces = [
        piece
        for start in range(0, len(text), size)
        for piece in splitter.feed(text[start : start + size])
    ]
    pieces += splitter.finish()
    thought = "".join(piece for piece, thinking in pieces if thinking)
    shown = "".join(piece for piece, thinking in pieces if not thinking)
    return thought, shown, "".join(piece for piece, _ in pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_marks_across_pieces_are_found_and_no_character_is_lost(size):
    """A mark across two rounds put the thought into the answer."""
    text = "<think>hm <b> so</think>The <i>answer</i>"
    thought, shown, whole = split(text, size)
    assert thought == "<think>hm <b> so</think>"
    assert shown == "The <i>answer</i>"
    assert whole == text


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_template_that_opens_the_thought_starts_inside(size):
    """Templates that open the thought in the prompt leave no opening mark in the answer."""
    assert split("hm</think>yes", size, inside=True)[:2] == ("hm</think>", "yes")


def test_a_thought_cut_short_stays_a_thought():
    """A thought cut by the token limit was reported as the answer."""
    assert split("<think>and then", 3)[:2] == ("<think>and then", "")


def test_models_without_marks_pass_through():
    """A model without a thinking mode may write "<think>" as text."""
    splitter = ThinkingSplitter(None)
    assert splitter.feed("a <think> b") == [("a <think> b", False)]
