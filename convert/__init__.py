"""Converts target and draft checkpoints into quantized MLX folders, in bounded memory.

It must not know the command line, the threads of a host program, or models that answer requests.
"""

__all__ = [
    "options",
    "outcome",
    "progress",
    "run",
    "upload",
]
