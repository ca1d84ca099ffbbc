"""Checks this machine, this installation and whether a pair fits.

It must not know the command line.
"""

__all__ = [
    "checkup",
    "combinations",
    "fit",
    "outlook",
]
