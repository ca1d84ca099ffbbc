"""Tokens to text: whole characters, no part of a stop string, for every grouping into rounds."""

import itertools

import pytest

from dflash_mlx.engine.answer.text import AnswerText, Detokenizer

END = 256


def decode(ids):
    """Decode ids of a byte tokenizer, as a byte-level BPE does."""
    return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def answer(text, group, stops=(), tail=(END,)):
    """Feed `text` byte by byte in rounds of `group` tokens; return text, tokens, end and count."""
    ids = [*text.encode(), *tail]
    out = AnswerText(decode, {END}, stops)
    text_out = ""
    n_kept = 0
    for start in range(0, len(ids), group):
        cut = out.cut(ids[start : start + group])
        n_kept += cut.n_tokens
        text_out += out.take()
        if cut.ended:
            break
    text_out += out.finish()
    return text_out, tuple(out.tokens), out.ended, n_kept


TEXTS = (
    "plain words",
    "naïve — “quoted” 🙂🙃 日本語",
    "stop here STOP and never this",
    "aab aaab aaaab",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stops", [(), ("STOP",), ("aaab", "zz"), ("🙃",)])
def test_text_and_tokens_do_not_depend_on_the_block_size(text, stops):
    """A stop string across two rounds was printed in part, or missed."""
    whole = answer(text, 10_000, stops)
    for group in (1, 2, 3, 5, 8, 16):
        text_out, tokens, ended, n_kept = answer(text, group, stops)
        assert (text_out, tokens, ended) == whole[:3], group


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_decoded_answer(text):
    """Emoji became replacement characters when each token was decoded alone."""
    assert answer(text, 1)[0] == text


def test_no_part_of_a_stop_string_is_emitted():
    """The start of a stop string was already on the screen when it matched."""
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
    """With the stops "b" and "abc", a block waited for "abc" where plain decoding ends at "b"."""
    for group in (1, 2, 5):
        assert answer("xxabc", group, ("b", "abc"))[0] == "xxa"


def test_tokens_inside_a_stop_string_are_not_reported():
    """Decoding `tokens` again brought the stop string back."""
    text_out, tokens, ended, n_kept = answer("one STOP two", 4, ("STOP",))
    assert ended
    assert decode(tokens) == text_out == "one "
    assert n_kept == len("one STOP")  # the caches hold these tokens


def test_the_held_start_of_a_stop_string_is_emitted_at_the_end():
    """An answer that ends with "ST" lost these letters while the matcher waited for "OP"."""
    assert answer("the coST", 3, ("STOP",))[0] == "the coST"


def test_an_end_token_inside_a_block_ends_the_answer():
    """Tokens accepted after an end token were printed."""
    out = AnswerText(decode, {END}, ())
    cut = out.cut([*b"ab", END, *b"junk"])
    assert cut == (3, True)
    assert out.take() + out.finish() == "ab"
    assert tuple(out.tokens) == tuple(b"ab")


def test_an_unfinished_character_at_the_limit_is_left_out():
    """A token limit inside an emoji printed a replacement character."""
    ids = list("ok 🙂".encode())[:-1]
    out = AnswerText(decode, {END}, ())
    out.cut(ids)
    assert out.take() + out.finish() == "ok "


def test_invalid_bytes_become_replacement_characters():
    """One invalid byte held back all later text."""
    detokenizer = Detokenizer(decode)
    text_out = "".join(detokenizer.push(i) for i in [*b"a", 0xFF, *b"bc"])
    assert text_out + detokenizer.rest() == "a\ufffdbc"


def test_the_space_before_a_word_is_kept():
    """Tokenizers drop the first space of a text, so tokens decoded alone lost theirs."""
    words = {1: "▁the", 2: "▁cat", 3: "s"}

    def sentence(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").lstrip(" ")

    detokenizer = Detokenizer(sentence)
    assert "".join(detokenizer.push(i) for i in (1, 2, 3)) == "the cats"


def test_invalid_bytes_are_not_held_for_ever():
    """A long run of half characters was decoded again with every token and never emitted."""
    longest = []

    def decode(ids):
        longest.append(len(ids))
        return bytes(ids).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.push(0x80) for _ in range(200)) + detokenizer.push(ord("x"))
    assert text == "\ufffd" * 200 + "x"
    assert max(longest) < 50


def test_tokens_without_text_are_not_held_for_ever():
    """Repeated special tokens without text made the window grow."""
    longest = []

    def decode(ids):
        longest.append(len(ids))
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(300) for _ in range(200)) + detokenizer.push(ord("x")) == "x"
    assert max(longest) < 50


def test_a_character_that_starts_in_the_last_held_tokens_is_whole():
    """Invalid bytes before an emoji destroyed the emoji."""
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"))
    ids = [*[0x80] * 15, *"🙂x".encode()]
    assert "".join(detokenizer.push(i) for i in ids) == "\ufffd" * 15 + "🙂x"


def test_a_word_after_tokens_without_text_keeps_its_space():
    """Tokens without text pushed the previous word out of the window."""

    def decode(ids):
        return "".join({1: "▁the", 2: "▁cats"}.get(i, "") for i in ids).replace("▁", " ").lstrip()

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(i) for i in [1, *[9] * 40, 2]) == "the cats"
