"""A training run from its options to the published draft: setup, plan, folder, result.

It must not know the command line.
"""

__all__ = [
    "job",
    "monitor",
    "options",
    "planning",
    "result",
    "run_folder",
    "schedule",
    "setup",
]
