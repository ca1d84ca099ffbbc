"""Compares a written conversion with its source: tensors, logits, and acceptance of a draft.

It must not know how files are written.
"""

__all__ = [
    "tensor_errors",
    "verification",
]
