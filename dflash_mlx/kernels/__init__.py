"""Puts the kernels of `metal/` into model layers and autotunes them on this machine.

It must not know requests, text or the decode loop.
"""

__all__ = [
    "autotuner",
    "pair_kernels",
]
