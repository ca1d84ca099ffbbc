"""Randomness tied to a position.

The random key of a row is (seed, position), so a token's noise depends on its position and not on
how the rows were grouped into rounds. Letters: R rows, V vocabulary.
"""

from enum import IntEnum

import mlx.core as mx


class Stream(IntEnum):
    """What a position's randomness is for; each is independent of the others."""

    TARGET = 0
    COIN = 1
    RESIDUAL = 2
    BONUS = 3
    DRAFT = 4


def row_key(seed: int, position: int, stream: Stream = Stream.TARGET) -> mx.array:
    """Return the random key of one row; `stream` separates several draws for one position."""
    return mx.array([(seed + 0x9E3779B9 * stream) % 2**32, position], dtype=mx.uint32)


def draw(scores: mx.array, seed: int, position: int, stream: Stream = Stream.TARGET) -> mx.array:
    """Return one token per row of `scores` [R, V], row i with the key of `position` + i."""
    rows = [
        mx.random.categorical(scores[row], key=row_key(seed, position + row, stream))
        for row in range(scores.shape[0])
    ]
    return mx.stack(rows)
