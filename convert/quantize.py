"""Quantizes and dequantizes rows with MLX, including the cases in which MLX's CPU backend fails.

MLX 0.32.4 on the CPU cannot process an odd number of nvfp4 groups: its kernel takes two at a time.
Rows are independent of each other, so a repeated last row completes the pair and is cut off again.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

_PAIRED_MODE = "nvfp4"


def quantize_rows(rows: mx.array, settings: Mapping[str, Any]) -> list[mx.array]:
    """Return words, scales and, in mode affine, biases of rows [n, width].

    `settings` holds bits, group_size and mode, as in a `config.json`.
    """
    extra = _needs_extra_row(rows.shape, settings)
    parts = mx.quantize(_with_last_row_twice(rows) if extra else rows, **settings)
    return [part[:-1] if extra else part for part in parts]


def dequantize_rows(
    words: mx.array, scales: mx.array, biases: mx.array | None, settings: Mapping[str, Any]
) -> mx.array:
    """Return the values [n, width] of quantized rows; `biases` is None outside mode affine."""
    width = scales.shape[-1] * settings["group_size"]
    if not _needs_extra_row((len(scales), width), settings):
        return mx.dequantize(words, scales, biases, **settings)
    words, scales = _with_last_row_twice(words), _with_last_row_twice(scales)
    return mx.dequantize(words, scales, biases, **settings)[:-1]


def _needs_extra_row(shape: tuple[int, ...], settings: Mapping[str, Any]) -> bool:
    group_size: int = settings["group_size"]
    return bool(settings["mode"] == _PAIRED_MODE and shape[0] * shape[1] // group_size % 2 == 1)


def _with_last_row_twice(rows: mx.array) -> mx.array:
    return mx.concatenate([rows, rows[-1:]])
