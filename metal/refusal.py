"""Reasons why a kernel does not support an input: what was given, and what is needed."""

from collections.abc import Iterable
from typing import Final

import mlx.core as mx

from dflash_mlx.errors import BadRequest

FLOATS: Final = (mx.float32, mx.bfloat16, mx.float16)
# MLX passes arrays of fewer than 8 elements in the constant address space; the kernels read
# device memory.
SMALLEST_ARRAY: Final = 8


def float_refusal(name: str, array: mx.array) -> str | None:
    """Return why the type of `array` is not supported, or None."""
    if array.dtype in FLOATS:
        return None
    return f"{name} is {array.dtype}; float32, bfloat16 or float16 is needed"


def shape_refusal(name: str, array: mx.array, shape: tuple[int, ...]) -> str | None:
    """Return why `array` does not have `shape`, or None."""
    if array.shape == shape:
        return None
    return f"{name} is {list(array.shape)}; {list(shape)} is needed"


def rank_refusal(name: str, array: mx.array, letters: str) -> str | None:
    """Return why `array` does not have one axis per letter of `letters`, or None."""
    if array.ndim == len(letters.split()):
        return None
    return f"{name} is {list(array.shape)}; [{', '.join(letters.split())}] is needed"


def size_refusal(name: str, array: mx.array) -> str | None:
    """Return why MLX would not pass `array` in device memory, or None."""
    if array.size >= SMALLEST_ARRAY:
        return None
    return f"{name} has {array.size} elements; {SMALLEST_ARRAY} or more are needed"


def rows_refusal(rows: int, least: int, most: int) -> str | None:
    """Return why `rows` is not in `least` to `most`, or None."""
    if least <= rows <= most:
        return None
    return f"x has {rows} rows; {least} to {most} are needed"


def first_reason(reasons: Iterable[str | None]) -> str | None:
    """Return the first reason; later ones are not computed."""
    return next((reason for reason in reasons if reason is not None), None)


def refuse(kernel: str, reason: str | None) -> None:
    """Raise BadRequest if `reason` is not None."""
    if reason is not None:
        raise BadRequest(f"{kernel}: {reason}. Use the MLX operation for this input.")
