"""Writes a planned conversion: weights, side files, cards, and the final rename.

It must not know how the result is compared with its source.
"""

__all__ = [
    "cards",
    "destination",
    "model_card",
    "pieces",
    "shards",
    "streaming",
    "work_folder",
]
