"""Committed tokens to text: whole characters only, and no part of a stop string.

Invariant: the text that was given out is a prefix of the answer's text, however tokens are
grouped into rounds. It must not know thoughts, tool calls or conversations.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from dflash_mlx.decode.loop import StopDecision

_REPLACEMENT = "\ufffd"
"""What a tokenizer decodes bytes to that are not a whole character."""

_MAX_CHARACTER_TOKENS = 4
"""Longest UTF-8 character in bytes, and so the most tokens that one character can take."""

_MAX_HELD_TOKENS = 16
"""Tokens held back at most. After so many, all but the last few are not part of any character:
four times the longest character leaves room for tokens that decode to nothing."""


def partial_match(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that one of `marks` starts with."""
    longest = max((len(mark) for mark in marks), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


class Detokenizer:
    """Decodes tokens one at a time and holds back the bytes of unfinished characters.

    The text of a token can depend on the one before it, so a short window is decoded with and
    without the new token; the difference is the new text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._n_emitted = 0  # tokens of the window whose text was returned

    def push(self, token: int) -> str:
        """Return the text that becomes complete with `token`."""
        self._window.append(token)
        before = self._decode(self._window[: self._n_emitted])
        text = self._decode(self._window)
        full = len(self._window) - self._n_emitted >= _MAX_HELD_TOKENS
        if len(text) <= len(before):
            if full:
                del self._window[self._n_emitted :]
            return ""
        n_open = 0
        if text.endswith(_REPLACEMENT):
            if not full:
                return ""
            n_open = _MAX_CHARACTER_TOKENS - 1
            text = self._decode(self._window[:-n_open])
        self._window = self._window[self._n_emitted :]
        self._n_emitted = len(self._window) - n_open
        return text[len(before) :]

    def rest(self) -> str:
        """Return the text held back, without the bytes of an unfinished character."""
        before = self._decode(self._window[: self._n_emitted])
        return self._decode(self._window)[len(before) :].rstrip(_REPLACEMENT)


class AnswerText:
    """The text of one answer, and where it ends. `cut` is the decode loop's stop condition.

    `stop` is the stop string that ended the answer; None if another cause did.

    `tokens` are the ids of the text, without the end token and without tokens that lie entirely
    inside a stop string.

    Args:
        decode: returns the text of token ids.
        eos_token_ids: tokens that end the answer.
        stops: texts that end the answer; those that are special tokens are end tokens too.
        stop_tokens: end tokens that are among `stops`, with their texts.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        eos_token_ids: Collection[int],
        stops: Sequence[str],
        stop_tokens: Mapping[int, str] | None = None,
    ) -> None:
        self.tokens: list[int] = []
        self.ended = False
        self.stop: str | None = None
        self._detokenizer = Detokenizer(decode)
        self._eos_token_ids = eos_token_ids
        self._stops = tuple(stops)
        self._stop_tokens = dict(stop_tokens or {})
        self._held = ""  # text that could be the start of a stop string
        self._ready = ""
        self._n_decoded = 0
        self._starts: list[int] = []  # position in the text where each token starts

    def cut(self, tokens: Sequence[int]) -> StopDecision:
        """Add tokens; return how many of them belong to the answer and whether it ends."""
        for count, token in enumerate(tokens, 1):
            if token in self._eos_token_ids:
                self.ended = True
                self.stop = self._stop_tokens.get(token)
            else:
                self._push(token)
            if self.ended:
                return StopDecision(count, True)
        return StopDecision(len(tokens), False)

    def take(self) -> str:
        """Return the text that became complete since the last call."""
        ready, self._ready = self._ready, ""
        return ready

    def finish(self) -> str:
        """Return the remaining text, after the last token."""
        self._append(self._detokenizer.rest())
        if not self._cut_at_stop():
            self._ready += self._held
            self._held = ""
        return self.take()

    def _push(self, token: int) -> None:
        self.tokens.append(token)
        self._starts.append(self._n_decoded)
        self._append(self._detokenizer.push(token))
        if not self._cut_at_stop():
            safe = len(self._held) - partial_match(self._held, self._stops)
            self._ready += self._held[:safe]
            self._held = self._held[safe:]

    def _append(self, text: str) -> None:
        self._held += text
        self._n_decoded += len(text)

    def _cut_at_stop(self) -> bool:
        """End the answer before the first stop string in the held text; return if there was one."""
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return False
        at, self.stop = min(found, key=lambda item: item[0])
        end = self._n_decoded - len(self._held) + at
        self._ready += self._held[:at]
        self._held = ""
        self.ended = True
        while self.tokens and self._starts[-1] >= end:
            self.tokens.pop()
            self._starts.pop()
        return True
