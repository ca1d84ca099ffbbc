"""Committed tokens into text: characters whole, stop strings never in part, whatever the block."""

import itertools

import pytest

from dflash_mlx.engine.answer_text import AnswerText, Detokenizer

END = 256


def decode(ids):
    """Decode a byte tokenizer's ids, as a byte-level BPE would."""
    return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def answer(text, group, stops=(), tail=(END,)):
    """Feed `text` byte by byte in rounds of `group` tokens; return all that came out."""
    ids = [*text.encode(), *tail]
    out = AnswerText(decode, {END}, stops)
    shown = ""
    kept = 0
    for start in range(0, len(ids), group):
        cut = out.cut(ids[start : start + group])
        kept += cut.n_kept
        shown += out.take()
        if cut.ended:
            break
    shown += out.finish()
    return shown, tuple(out.tokens), out.ended, kept


TEXTS = (
    "plain words",
    "naïve — “quoted” 🙂🙃 日本語",
    "stop here STOP and never this",
    "aab aaab aaaab",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stops", [(), ("STOP",), ("aaab", "zz"), ("🙃",)])
def test_text_and_tokens_do_not_depend_on_the_block(text, stops):
    """A stop string across a block border used to be printed in part, or to be missed."""
    whole = answer(text, 10_000, stops)
    for group in (1, 2, 3, 5, 8, 16):
        shown, tokens, ended, kept = answer(text, group, stops)
        assert (shown, tokens, ended) == whole[:3], group


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_decoded_answer(text):
    """Emoji came out as replacement characters when each token was decoded alone."""
    assert answer(text, 1)[0] == text


def test_nothing_of_a_stop_string_is_ever_given_out():
    """A stop string whose beginning was already on the screen could not be taken back."""
    for prefix, stop in itertools.product(("", "S", "ST", "xSTSTO"), ("STOP", "TOP")):
        full = prefix + "STOP tail"
        out = AnswerText(decode, {END}, (stop,))
        seen = ""
        for byte in full.encode():
            cut = out.cut([byte])
            seen += out.take()
            assert full[: full.index(stop)].startswith(seen)
            if cut.ended:
                break
        assert seen + out.finish() == full[: full.index(stop)]


def test_the_stop_string_that_is_complete_first_ends_the_answer():
    """With "b" and "abc", step by step decoding stops at "b"; a block must not wait for "abc"."""
    for group in (1, 2, 5):
        assert answer("xxabc", group, ("b", "abc"))[0] == "xxa"


def test_tokens_inside_a_stop_string_are_not_reported():
    """`tokens` decoded again must not bring the stop string back."""
    shown, tokens, ended, kept = answer("one STOP two", 4, ("STOP",))
    assert ended
    assert decode(tokens) == shown == "one "
    assert kept == len("one STOP")  # what the model wrote stays in its caches


def test_a_held_beginning_of_a_stop_string_comes_out_at_the_end():
    """An answer that ends with "ST" lost these letters while the matcher waited for "OP"."""
    assert answer("the coST", 3, ("STOP",))[0] == "the coST"


def test_end_token_cuts_inside_a_block():
    """Junk behind an end token accepted in the middle of a block was printed."""
    out = AnswerText(decode, {END}, ())
    cut = out.cut([*b"ab", END, *b"junk"])
    assert cut == (3, True)
    assert out.take() + out.finish() == "ab"
    assert tuple(out.tokens) == tuple(b"ab")


def test_an_unfinished_character_at_the_limit_is_left_out():
    """max_tokens inside an emoji printed a replacement character."""
    ids = list("ok 🙂".encode())[:-1]
    out = AnswerText(decode, {END}, ())
    out.cut(ids)
    assert out.take() + out.finish() == "ok "


def test_bytes_that_never_make_a_character_are_shown_as_such_once_text_goes_on():
    """A stray byte must not hold back everything behind it."""
    detokenizer = Detokenizer(decode)
    shown = "".join(detokenizer.push(i) for i in [*b"a", 0xFF, *b"bc"])
    assert shown + detokenizer.rest() == "a\ufffdbc"


def test_text_that_depends_on_the_token_before_keeps_its_space():
    """Tokenizers that drop the first space of a text lost every space when decoded alone."""
    words = {1: "▁the", 2: "▁cat", 3: "s"}

    def sentence(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").lstrip(" ")

    detokenizer = Detokenizer(sentence)
    assert "".join(detokenizer.push(i) for i in (1, 2, 3)) == "the cats"


def test_what_never_makes_a_character_is_not_held_for_ever():
    """A loop of half characters decoded all of itself again with every token, and showed none."""
    longest = []

    def decode(ids):
        longest.append(len(ids))
        return bytes(ids).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.push(0x80) for _ in range(200)) + detokenizer.push(ord("x"))
    assert text == "\ufffd" * 200 + "x"
    assert max(longest) < 50


def test_tokens_without_text_are_not_held_for_ever():
    """A special token that is left out, said again and again."""
    longest = []

    def decode(ids):
        longest.append(len(ids))
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(300) for _ in range(200)) + detokenizer.push(ord("x")) == "x"
    assert max(longest) < 50


def test_a_character_that_begins_among_the_last_tokens_held_is_whole():
    """Junk before an emoji must not cost the emoji."""
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"))
    ids = [*[0x80] * 15, *"🙂x".encode()]
    assert "".join(detokenizer.push(i) for i in ids) == "\ufffd" * 15 + "🙂x"


def test_a_word_behind_tokens_without_text_keeps_its_space():
    """Silent tokens must not push out the word that the next one's space depends on."""

    def decode(ids):
        return "".join({1: "▁the", 2: "▁cats"}.get(i, "") for i in ids).replace("▁", " ").lstrip()

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(i) for i in [1, *[9] * 40, 2]) == "the cats"
