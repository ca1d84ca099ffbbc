"""Random keys that depend on the seed and the token's position only.

Samples therefore do not depend on how rows were grouped into rounds. This module must not know
models or requests.
"""

from enum import IntEnum

import mlx.core as mx


class RandomStream(IntEnum):
    """The purpose of a random draw. Draws of different streams are independent."""

    TARGET = 0
    COIN = 1
    RESIDUAL = 2
    BONUS = 3
    DRAFT = 4


def row_key(seed: int, position: int, stream: RandomStream = RandomStream.TARGET) -> mx.array:
    """Return the random key [2] for one position and stream.

    The factor is 2^32 divided by the golden ratio, which keeps the streams of one seed far from
    those of nearby seeds.
    """
    return mx.array([(seed + 0x9E3779B9 * stream) % 2**32, position], dtype=mx.uint32)


def draw(
    scores: mx.array, seed: int, position: int, stream: RandomStream = RandomStream.TARGET
) -> mx.array:
    """Return one token per row [R] of `scores` [R, V]; row i uses the key of `position` + i."""
    rows = [
        mx.random.categorical(scores[row], key=row_key(seed, position + row, stream))
        for row in range(scores.shape[0])
    ]
    return mx.stack(rows)
