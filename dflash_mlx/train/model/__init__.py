"""The draft to train: its configuration, its first weights and its forward pass over many blocks.

It must not know samples, optimisers or runs.
"""

__all__ = ["forward", "initial_draft", "shape"]
