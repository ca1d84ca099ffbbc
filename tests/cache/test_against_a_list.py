"""Every kind of cache against a plain list: random rounds, rollbacks, wraps and returns.

Rows are numbers, a state is a fold over all of them, so what a cache holds can be computed from
the list of committed numbers alone.
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
"""So many rows, so many of them kept, and how many belong to a place worth remembering."""
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
    joined = CacheList(LatentCache(), RotatingKVCache(3))
    return [KVCache(), RotatingKVCache(WINDOW), ConvolutionCache(KERNEL), RecurrentCache(3), joined]


def fold(numbers):
    """Return a state in which the order of rows matters; whole numbers, so float32 is exact."""
    state = 0
    for number in numbers:
        state = (state * 31 + number) % 9973
    return state


def column(numbers):
    return mx.array(numbers, dtype=mx.float32).reshape(1, 1, -1, 1)


def rows(numbers):
    return mx.array(numbers, dtype=mx.float32).reshape(1, -1, 1)


def attend(cache, committed, new):
    """Append `new` to an attention cache and check what attention gets, and its mask."""
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


def walk(layers, committed, new):
    """Append `new` to every layer, checking what its forward pass would see."""
    full, window, convolution, recurrent, joined = layers
    attend(full, committed, new)
    attend(window, committed, new)
    attend(joined[0], committed, new)
    attend(joined[1], committed, new)
    for cache, kernel in ((convolution, KERNEL), (recurrent, 3)):
        seen = cache.append(rows(new)).reshape(-1).tolist()
        assert seen == ([0] * kernel + committed)[-(kernel - 1) :] + new
    before = 0 if recurrent.state is None else recurrent.state.item()
    assert before == fold(committed)

    def tape(n):
        return mx.array(float(fold([*committed, *new[:n]])))

    recurrent.advance(tape(len(new)), tape)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS)
def test_what_layers_see_is_what_was_committed(steps):
    """A rejected row that stays visible, or an accepted one that does not, changes the text only
    now and then."""
    with patch("dflash_mlx.cache.window._ROOM", 3):
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
                walk(cache.layers, committed, new)
                if step[0] == "rollback":
                    cache.rollback()
                else:
                    kept, mark = min(step[2], len(new)), step[3]
                    if mark is not None and mark <= kept:
                        cache.snapshot(mark)
                    cache.commit(kept)
                    committed = [*committed, *new[:kept]]
            assert cache.length == len(committed)
            assert {layer.offset for layer in cache.layers} == {len(committed)}


def filled(layers, numbers, remember=None):
    cache, committed = PairCache(layers), []
    for at in range(0, len(numbers), 6):
        new = numbers[at : at + 6]
        cache.append(len(new))
        walk(cache.layers, committed, new)
        if remember is not None and at < remember <= at + len(new):
            cache.snapshot(remember - at)
        cache.commit(len(new))
        committed += new
    return cache


def test_a_remembered_place_is_returned_to_more_than_once():
    """A turn that is asked anew three times starts from the same rows three times."""
    numbers = list(range(1, 41))
    cache = filled(make_layers(), numbers, remember=20)
    for _ in range(3):
        assert cache.trim_to(21) == 20
        assert cache.length == 20
        cache.append(4)
        walk(cache.layers, numbers[:20], [91, 92, 93, 94])
        cache.commit(2)


def test_without_a_place_a_state_goes_back_to_the_beginning():
    """Half a state is no state: the prompt is read again."""
    cache = filled(make_layers(), list(range(1, 41)))
    assert cache.trim_to(33) == 0
    cache.append(3)
    walk(cache.layers, [], [7, 8, 9])


def test_full_caches_go_back_anywhere_exactly():
    """Dense models lose nothing when a conversation is edited."""
    cache = PairCache([KVCache()])
    cache.append(30)
    attend(cache.layers[0], [], list(range(30)))
    cache.commit(30)
    assert cache.trim_to(17) == 17
    attend(cache.layers[0], list(range(17)), [50, 51])


@pytest.mark.parametrize("n_rows", [1, 2, 300, 700])
def test_a_window_keeps_its_size(n_rows):
    """A long conversation must not grow a cache whose point is not to grow."""
    cache = RotatingKVCache(16)
    for _ in range(2000 // n_rows):
        cache.update_and_fetch(mx.zeros((1, 2, n_rows, 8)), mx.zeros((1, 2, n_rows, 8)))
        cache.commit(n_rows)
    assert cache.nbytes <= 2 * 2 * 8 * 4 * (16 + n_rows + 256)
    assert cache.row_bytes == 0
