"""How much of a model's weights a plain step reads: what memory bandwidth bounds."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

_TAKEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""What configurations call the routed experts that a token takes."""


def step_bytes(model: nn.Module, args: Any, head: nn.Module) -> int:
    """Return the bytes of weights that one row of `model` reads.

    Routed experts count by the share that a token takes of them, an embedding by one row unless
    it is the `head` too. `args` are the text model's own.
    """
    taken = next((n for name in _TAKEN if (n := getattr(args, name, None))), None)
    n_bytes = 0.0
    for module in model.modules():
        own = (value for name, value in module.items() if name[0] != "_")
        n_own = sum(value.nbytes for value in own if isinstance(value, mx.array))
        share = 1.0
        if isinstance(module, SwitchLinear | QuantizedSwitchLinear) and taken:
            share = taken / module.num_experts
        elif isinstance(module, nn.Embedding | nn.QuantizedEmbedding) and module is not head:
            share = 1 / module.weight.shape[0]
        n_bytes += share * n_own
    return round(n_bytes)
