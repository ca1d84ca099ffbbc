"""The block-size controller: measured costs, acceptance, probing and the slowdown budget.

It must not know models, text or threads.
"""

__all__ = [
    "acceptance",
    "adaptive",
    "calibrate",
    "cost_store",
    "costs",
    "tuning",
]
