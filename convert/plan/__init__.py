"""Decides what a conversion writes: tensor names, types, quantization, files and offsets.

It must not know how files are written or checked.
"""

__all__ = [
    "auto_recipe",
    "computed",
    "draft_layout",
    "files",
    "job",
    "layer_runner",
    "layout",
    "packed_source",
    "recipe",
    "weights",
]
