"""Measures speculative decoding against plain mlx-lm on this machine.

It must not know the command line or the layout of a terminal.
"""

__all__ = [
    "arms",
    "earlier",
    "forwards",
    "page",
    "report",
    "run",
    "suites",
    "summary",
    "thermal",
]
