"""Committed tokens into text that may be shown: whole characters, stop strings never in part.

Invariant: what was given out is a prefix of the answer's text, whatever the grouping of tokens
into rounds, and no part of a stop string is in it.
"""

from collections.abc import Callable, Collection, Sequence

from dflash_mlx.decode.loop import StopDecision
from dflash_mlx.engine.marks import unfinished

_INCOMPLETE = "\ufffd"

_LONGEST = 4
"""Bytes of the longest character, and so the most tokens that one is made of."""

_MOST_HELD = 16
"""Tokens held back at most: all but the last few of these will never be a character."""


class Detokenizer:
    """Decodes tokens one at a time, holding back bytes that do not make a character yet.

    A token's text can depend on the one before it, so a short window is decoded with and without
    the new token and the difference is the text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._shown = 0  # tokens of the window whose text was given out

    def push(self, token: int) -> str:
        """Return the text that `token` completes."""
        self._window.append(token)
        before = self._decode(self._window[: self._shown])
        text = self._decode(self._window)
        full = len(self._window) - self._shown >= _MOST_HELD
        if len(text) <= len(before):
            if full:
                del self._window[self._shown :]
            return ""
        n_open = 0
        if text.endswith(_INCOMPLETE):
            if not full:
                return ""
            n_open = _LONGEST - 1
            text = self._decode(self._window[:-n_open])
        self._window = self._window[self._shown :]
        self._shown = len(self._window) - n_open
        return text[len(before) :]

    def rest(self) -> str:
        """Return what is held back, without the bytes of an unfinished character."""
        before = self._decode(self._window[: self._shown])
        return self._decode(self._window)[len(before) :].rstrip(_INCOMPLETE)


class AnswerText:
    """The text of one answer, and where it ends.

    `cut` is the decode loop's ending. `tokens` are the ids behind the text: the end token is not
    among them, nor are tokens that lie wholly inside a stop string.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        eos_token_ids: Collection[int],
        stops: Sequence[str],
    ) -> None:
        self.tokens: list[int] = []
        self.ended = False
        self._detokenizer = Detokenizer(decode)
        self._eos_token_ids = eos_token_ids
        self._stops = tuple(stops)
        self._held = ""  # text that may turn out to begin a stop string
        self._ready = ""
        self._n_decoded = 0
        self._starts: list[int] = []  # where in the text each token begins

    def cut(self, tokens: Sequence[int]) -> StopDecision:
        """Take tokens in order; say how many belong to the answer and whether it ends."""
        for count, token in enumerate(tokens, 1):
            if token in self._eos_token_ids:
                self.ended = True
            else:
                self._push(token)
            if self.ended:
                return StopDecision(count, True)
        return StopDecision(len(tokens), False)

    def take(self) -> str:
        """Return the text that became ready since the last call."""
        ready, self._ready = self._ready, ""
        return ready

    def finish(self) -> str:
        """Return the last of the text, once no more tokens come."""
        self._read(self._detokenizer.rest())
        if not self._cut_at_stop():
            self._ready += self._held
            self._held = ""
        return self.take()

    def _push(self, token: int) -> None:
        self.tokens.append(token)
        self._starts.append(self._n_decoded)
        self._read(self._detokenizer.push(token))
        if not self._cut_at_stop():
            safe = len(self._held) - unfinished(self._held, self._stops)
            self._ready += self._held[:safe]
            self._held = self._held[safe:]

    def _read(self, text: str) -> None:
        self._held += text
        self._n_decoded += len(text)

    def _cut_at_stop(self) -> bool:
        """End the answer before the first stop string in the held text, if there is one."""
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if not found:
            return False
        end = self._n_decoded - len(self._held) + min(found)
        self._ready += self._held[: min(found)]
        self._held = ""
        self.ended = True
        while self.tokens and self._starts[-1] >= end:
            self.tokens.pop()
            self._starts.pop()
        return True
