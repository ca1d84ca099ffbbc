"""Every kind of cache against a plain list, over random rounds, rollbacks and trims.

Rows are numbers and a state is a fold over them, so the expected content of each cache follows
from the list of committed numbers.
"""

from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_mlx.cache import (
    CacheList,
    ConvolutionCache,
    KVCache,
    LatentCache,
    PairCache,
    RecurrentCache,
    RotatingKVCache,
)

WINDOW, KERNEL = 5, 4

ROUND = st.tuples(
    st.just("round"), st.integers(1, 9), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))
)
"""Rows appended, rows committed, and rows included in a snapshot (None: no snapshot)."""
STEPS = st.lists(
    st.one_of(
        ROUND,
        ROUND,
        st.tuples(st.just("rollback"), st.integers(1, 9)),
        st.tuples(st.just("trim_to"), st.integers(0, 60)),
    ),
    max_size=30,
)


def make_layers():
    both = CacheList(LatentCache(), RotatingKVCache(3))
    return [KVCache(), RotatingKVCache(WINDOW), ConvolutionCache(KERNEL), RecurrentCache(3), both]


def fold(numbers):
    """Return a state that depends on the order of rows; integers, so float32 is exact."""
    state = 0
    for number in numbers:
        state = (state * 31 + number) % 9973
    return state


def column(numbers):
    return mx.array(numbers, dtype=mx.float32).reshape(1, 1, -1, 1)


def rows(numbers):
    return mx.array(numbers, dtype=mx.float32).reshape(1, -1, 1)


def attend(cache, committed, new):
    """Append `new` to an attention cache and check the returned rows and the mask."""
    n_rows, window = len(new), getattr(cache, "window", None)
    mask = cache.mask(n_rows)
    keys, values = cache.update_and_fetch(column(new), -column(new))
    everything = [*committed, *new]
    before = len(committed) if window is None else min(len(committed), window - 1)
    given = everything[len(committed) - before :]
    assert keys.reshape(-1).tolist() == given
    assert values.reshape(-1).tolist() == [-number for number in given]
    sees = [
        [
            row - key >= 0 and (window is None or row - key < window)
            for key in range(-before, n_rows)
        ]
        for row in range(n_rows)
    ]
    if mask is None:
        assert n_rows == 1
        assert all(sees[0])
    elif isinstance(mask, str):
        assert mask == "causal"
        assert all(row[: before + at + 1].count(False) == 0 for at, row in enumerate(sees))
    else:
        assert mask.tolist() == sees


def append_to_all(layers, committed, new):
    """Append `new` to every layer and check what its forward pass receives."""
    full, window, convolution, recurrent, both = layers
    attend(full, committed, new)
    attend(window, committed, new)
    attend(both[0], committed, new)
    attend(both[1], committed, new)
    for cache, kernel in ((convolution, KERNEL), (recurrent, 3)):
        seen = cache.append(rows(new)).reshape(-1).tolist()
        assert seen == ([0] * kernel + committed)[-(kernel - 1) :] + new
    before = 0 if recurrent.state is None else recurrent.state.item()
    assert before == fold(committed)

    def state_after(n):
        return mx.array(float(fold([*committed, *new[:n]])))

    recurrent.set_open_state(state_after(len(new)), state_after)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS)
def test_layers_see_exactly_the_committed_rows(steps):
    """A visible rejected row, or a missing accepted one, changes the text only sometimes."""
    with patch("dflash_mlx.cache.rotating._ROOM", 3):
        cache, committed, number = PairCache(make_layers()), [], 0
        for step in steps:
            if step[0] == "trim_to":
                left = cache.trim_to(step[1])
                assert left <= min(step[1], len(committed))
                assert step[1] < len(committed) or left == len(committed)
                committed = committed[:left]
            else:
                new = [(number + at) % 997 + 1 for at in range(step[1])]
                number += len(new)
                cache.append(len(new))
                append_to_all(cache.layers, committed, new)
                if step[0] == "rollback":
                    cache.rollback()
                else:
                    n_committed, n_snapshot = min(step[2], len(new)), step[3]
                    if n_snapshot is not None and n_snapshot <= n_committed:
                        cache.snapshot(n_snapshot)
                    cache.commit(n_committed)
                    committed = [*committed, *new[:n_committed]]
            assert cache.length == len(committed)
            assert {layer.offset for layer in cache.layers} == {len(committed)}


def filled(layers, numbers, snapshot_at=None):
    cache, committed = PairCache(layers), []
    for at in range(0, len(numbers), 6):
        new = numbers[at : at + 6]
        cache.append(len(new))
        append_to_all(cache.layers, committed, new)
        if snapshot_at is not None and at < snapshot_at <= at + len(new):
            cache.snapshot(snapshot_at - at)
        cache.commit(len(new))
        committed += new
    return cache


def test_a_snapshot_can_be_restored_repeatedly():
    """A turn that is retried three times starts from the same rows three times."""
    numbers = list(range(1, 41))
    cache = filled(make_layers(), numbers, snapshot_at=20)
    for _ in range(3):
        assert cache.trim_to(21) == 20
        assert cache.length == 20
        cache.append(4)
        append_to_all(cache.layers, numbers[:20], [91, 92, 93, 94])
        cache.commit(2)


def test_without_a_snapshot_a_state_is_trimmed_to_nothing():
    """A recurrent state cannot drop its last rows, so the prompt is read again."""
    cache = filled(make_layers(), list(range(1, 41)))
    assert cache.trim_to(33) == 0
    cache.append(3)
    append_to_all(cache.layers, [], [7, 8, 9])


def test_growing_caches_trim_to_any_length():
    """Dense models re-read only the changed part of an edited conversation."""
    cache = PairCache([KVCache()])
    cache.append(30)
    attend(cache.layers[0], [], list(range(30)))
    cache.commit(30)
    assert cache.trim_to(17) == 17
    attend(cache.layers[0], list(range(17)), [50, 51])


@pytest.mark.parametrize("n_rows", [1, 2, 300, 700])
def test_a_sliding_window_has_a_bounded_size(n_rows):
    """A cache of a sliding window grew with the conversation."""
    cache = RotatingKVCache(16)
    for _ in range(2000 // n_rows):
        cache.update_and_fetch(mx.zeros((1, 2, n_rows, 8)), mx.zeros((1, 2, n_rows, 8)))
        cache.commit(n_rows)
    assert cache.nbytes <= 2 * 2 * 8 * 4 * (16 + n_rows + 256)
    assert cache.row_bytes == 0
