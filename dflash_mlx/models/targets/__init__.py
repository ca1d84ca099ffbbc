"""Target models: one class per family, run layer by layer so that hidden states can be read.

It must not know checkpoints or the draft.
"""

__all__ = [
    "decoder",
    "families",
]
