"""Layer shapes of the models in the table, from their config.json files."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = (5, 8, 16)
CONTEXT = 4096  # keys before the block


@dataclass(frozen=True)
class Matrix:
    """Weights [outputs, inputs] that occur `times` in a forward pass."""

    name: str
    outputs: int
    inputs: int
    times: int


@dataclass(frozen=True)
class Attention:
    """Full attention that occurs in `times` layers."""

    heads: int
    kv_heads: int
    head_size: int
    times: int


@dataclass(frozen=True)
class Model:
    """Matrices of one forward pass, the head last, and its full attention."""

    name: str
    matrices: tuple[Matrix, ...]
    head: Matrix
    attention: Attention


MODELS = (
    Model(
        "Qwen3-4B",
        (
            Matrix("q", 4096, 2560, 36),
            Matrix("k, v", 1024, 2560, 72),
            Matrix("o", 2560, 4096, 36),
            Matrix("gate, up", 9728, 2560, 72),
            Matrix("down", 2560, 9728, 36),
        ),
        Matrix("head", 151936, 2560, 1),
        Attention(32, 8, 128, 36),
    ),
    Model(
        "Qwen3-8B",
        (
            Matrix("q, o", 4096, 4096, 72),
            Matrix("k, v", 1024, 4096, 72),
            Matrix("gate, up", 12288, 4096, 72),
            Matrix("down", 4096, 12288, 36),
        ),
        Matrix("head", 151936, 4096, 1),
        Attention(32, 8, 128, 36),
    ),
    Model(
        "Qwen3.5-27B",
        (
            Matrix("attention q", 12288, 5120, 16),
            Matrix("attention k, v", 1024, 5120, 32),
            Matrix("attention o, delta o", 5120, 6144, 64),
            Matrix("delta qkv", 10240, 5120, 48),
            Matrix("delta z", 6144, 5120, 48),
            Matrix("gate, up", 17408, 5120, 128),
            Matrix("down", 5120, 17408, 64),
        ),
        Matrix("head", 248320, 5120, 1),
        Attention(24, 4, 256, 16),
    ),
)
