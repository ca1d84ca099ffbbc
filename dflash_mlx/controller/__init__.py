"""Chooses the block size of each round from measured costs, acceptance and a slowdown budget.

It must not know models, text or threads; only `calibrate` runs the decode loop, to measure it.
"""

__all__ = [
    "acceptance",
    "adaptive",
    "calibrate",
    "cost_store",
    "costs",
    "slowdown_budget",
    "state",
    "text_policy",
]
