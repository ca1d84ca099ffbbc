"""A suffix automaton of a growing token sequence: it finds the longest repeated suffix.

It must not know what the tokens mean. Construction after Blumer et al., "The smallest automaton
recognizing the subwords of a text", Theoretical Computer Science 40 (1985).
"""

from array import array
from collections.abc import Iterator

_NONE = -1


class SuffixAutomaton:
    """The minimal automaton of all substrings of the tokens appended so far.

    Each state stands for a set of substrings that end at the same positions. n tokens make fewer
    than 2n states and 3n transitions, and no transition is ever removed, so `append` takes O(1)
    amortised time and the memory is O(n). Most states have one transition, which is stored in
    arrays; the others use a dictionary.
    """

    def __init__(self) -> None:
        self._longest = array("i", [0])  # length of the longest substring of a state
        self._link = array("i", [_NONE])  # state of its longest suffix with more occurrences
        self._end = array("i", [0])  # end position of an occurrence, a recent one if known
        self._token = array("i", [_NONE])  # first transition: token and target state
        self._target = array("i", [_NONE])
        self._branches: dict[int, dict[int, int]] = {}  # further transitions
        self._last = 0
        self.n_tokens = 0
        self.repeated_length = 0
        """Length of the longest suffix of all tokens that also occurs earlier."""
        self.repeated_end = 0
        """Position after an earlier occurrence of that suffix."""

    def append(self, token: int) -> None:
        """Append one token and update `repeated_length` and `repeated_end`."""
        self.n_tokens += 1
        link, longest = self._link, self._longest
        new = self._new_state(longest[self._last] + 1, self.n_tokens)
        state = self._last
        while state != _NONE and self._next(state, token) == _NONE:
            self._set(state, token, new)
            state = link[state]
        if state == _NONE:
            link[new] = 0
        else:
            target = self._next(state, token)
            if longest[state] + 1 != longest[target]:
                target = self._split(state, token, target)
            link[new] = target
        self._last = new
        repeated = link[new]
        self.repeated_length, self.repeated_end = longest[repeated], self._end[repeated]
        self._end[repeated] = self.n_tokens

    def _split(self, state: int, token: int, target: int) -> int:
        """Return a clone of `target` for the substrings that reach it through `state`."""
        clone = self._new_state(self._longest[state] + 1, self._end[target])
        for other, to in self._transitions(target):
            self._set(clone, other, to)
        self._link[clone] = self._link[target]
        self._link[target] = clone
        while state != _NONE and self._next(state, token) == target:
            self._set(state, token, clone)
            state = self._link[state]
        return clone

    def _new_state(self, longest: int, end: int) -> int:
        self._longest.append(longest)
        self._link.append(_NONE)
        self._end.append(end)
        self._token.append(_NONE)
        self._target.append(_NONE)
        return len(self._longest) - 1

    def _next(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        branches = self._branches.get(state)
        return branches.get(token, _NONE) if branches else _NONE

    def _set(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (_NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._branches.setdefault(state, {})[token] = target

    def _transitions(self, state: int) -> Iterator[tuple[int, int]]:
        if self._token[state] != _NONE:
            yield self._token[state], self._target[state]
        yield from self._branches.get(state, {}).items()
