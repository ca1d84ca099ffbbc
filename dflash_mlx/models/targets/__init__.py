"""Target models: mlx-lm's layers run one by one so that hidden states can be read.

It must not know checkpoints or the draft.
"""

__all__ = [
    "config_file",
    "decoder",
    "families",
    "model_types",
]
