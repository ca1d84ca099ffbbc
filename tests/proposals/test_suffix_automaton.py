"""The suffix automaton: exact against a search, linear in memory, constant in time per token."""

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from dflash_mlx.proposals.context_copy import ContextCopy
from dflash_mlx.proposals.suffix_automaton import SuffixAutomaton


def longest_repeated_suffix(tokens):
    """Return the length of the longest suffix that also occurs earlier, by search."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[len(tokens) - length :]
        if any(tokens[end - length : end] == suffix for end in range(length, len(tokens))):
            return length
    return 0


@given(st.lists(st.integers(0, 2), max_size=40) | st.lists(st.integers(0, 9), max_size=40))
def test_the_longest_repeated_suffix_is_found_at_every_token(tokens):
    """A wrong clone gives a shorter match, or one that does not exist."""
    automaton = SuffixAutomaton()
    for count, token in enumerate(tokens, 1):
        automaton.append(token)
        seen, length = tokens[:count], automaton.repeated_length
        end = automaton.repeated_end
        assert length == longest_repeated_suffix(seen)
        assert length == 0 or end < count
        assert seen[end - length : end] == seen[count - length :]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 40))
def test_a_copy_continues_the_earlier_occurrence(tokens, n_tokens):
    """Near the end of the context the copied text overlaps the proposal itself."""
    source = ContextCopy(tokens)
    proposal = source.propose(n_tokens)
    if source.match_length == 0:
        assert proposal == []
        return
    extended = [*tokens, *proposal]
    shift = len(tokens) - source._automaton.repeated_end
    assert len(proposal) == n_tokens
    assert all(extended[at] == extended[at - shift] for at in range(len(tokens), len(extended)))


def test_a_recent_occurrence_is_preferred():
    """Edited code occurs twice, and the newer version is the one that is continued."""
    assert ContextCopy([1, 2, 3, 9, 1, 2, 4, 8, 1, 2]).propose(2) == [4, 8]


def test_memory_is_linear_and_an_append_does_not_slow_down():
    """An index that copies its contents costs more per token than a draft forward."""
    randomness, tokens = random.Random(0), []
    while len(tokens) < 100_000:
        start = randomness.randrange(len(tokens) + 1)
        copied = tokens[start : start + randomness.randrange(60)]
        tokens += copied + [int(randomness.paretovariate(0.7)) % 49_000 for _ in range(40)]
    tokens = tokens[:100_000]
    tracemalloc.start()
    source = ContextCopy(tokens[:50_000])
    half = tracemalloc.get_traced_memory()[0]
    source.extend(tokens[50_000:])
    whole = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert whole < 2.5 * half
    assert whole < 200 * len(tokens)  # bytes; measured: 111 per token
    assert len(source._automaton._link) < 2 * len(tokens)
