"""Runs the block-size controller on recorded and synthetic traces, without a model.

It must not know models or the command line.
"""

__all__ = [
    "generate",
    "report",
    "run",
    "scenario",
]
