"""Trains a draft model for a target model, with the target as its teacher.

It must not know the command line.
"""

__all__ = [
    "job",
    "options",
    "outcome",
    "plan",
    "planning",
    "preparing",
    "reports",
    "run_folder",
    "shape",
]
