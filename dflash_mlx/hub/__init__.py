"""Turns names into local folders and downloads what is missing.

It must not know models in memory.
"""

__all__ = [
    "builds",
    "data_file",
    "data_sets",
    "download",
    "errors",
    "inventory",
    "listing",
    "pins",
    "resolve",
]
