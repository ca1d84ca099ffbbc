"""Checks of this machine, this installation and the memory that a pair needs.

It must not know the command line.
"""

__all__ = [
    "checkup",
    "combinations",
    "fit",
    "outlook",
    "precision",
    "report",
]
