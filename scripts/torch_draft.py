"""A DFlash draft, its loss and a Llama target in PyTorch, for `train_embedded_draft.py`.

Follows `dflash_mlx/train` (same shapes, names and loss), so that `tests/train/test_torch_draft.py`
can compare both. Supports full attention and no logit scaling, as in the embedded pair.
Letters: N blocks of size B, S context rows, F elements of the target's hidden states, D hidden
size, V ids of the head, K stored tokens of the target's distribution.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the RMS norm of `rows`, computed in float32."""
    wide = rows.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(rows.dtype) * weight


class RMSNorm(nn.Module):
    """RMS norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return normed rows."""
        return rms_norm(rows, self.weight, self.eps)


def rotate(heads: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Return `heads` [N, H, n, d] with rotary embeddings for `positions` [N, n]."""
    half = heads.shape[-1] // 2
    inverse = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * inverse
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    """Attention of block rows over the shared context and over their own block."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        size, dim = config["hidden_size"], config["head_dim"]
        self.n_heads, self.n_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.theta = config["rope_theta"]
        self.q_proj = nn.Linear(size, self.n_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, self.n_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, self.n_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * dim, size, bias=False)
        self.q_norm = RMSNorm(dim, config["rms_norm_eps"])
        self.k_norm = RMSNorm(dim, config["rms_norm_eps"])

    def forward(
        self, rows: torch.Tensor, context: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Return [N, B, D] for normed rows [N, B, D], context [S, D] and anchors [N]."""
        n_blocks, block_size, _ = rows.shape
        n_context = context.shape[0]
        positions = anchors[:, None] + torch.arange(block_size)
        queries = self.q_norm(self._heads(self.q_proj(rows), self.n_heads))
        keys, values = self._keys_values(rows, positions)
        past = self._keys_values(context[None], torch.arange(n_context)[None])
        keys, values = (
            torch.cat([old.expand(n_blocks, -1, -1, -1), new], 2)
            for old, new in zip(past, (keys, values), strict=True)
        )
        seen = torch.arange(n_context)[None] < anchors[:, None]
        mask = torch.cat([seen, torch.ones(n_blocks, block_size, dtype=torch.bool)], 1)
        mixed = functional.scaled_dot_product_attention(
            rotate(queries, positions, self.theta),
            keys,
            values,
            attn_mask=mask[:, None, None].expand(-1, -1, block_size, -1),
            enable_gqa=True,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(n_blocks, block_size, -1))

    def _keys_values(
        self, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.k_norm(self._heads(self.k_proj(rows), self.n_kv_heads))
        values = self._heads(self.v_proj(rows), self.n_kv_heads)
        return rotate(keys, positions, self.theta), values

    @staticmethod
    def _heads(projected: torch.Tensor, n_heads: int) -> torch.Tensor:
        return projected.unflatten(-1, (n_heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config)
        self.mlp = FeedForward(size, config["intermediate_size"])
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)

    def forward(
        self, rows: torch.Tensor, context: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Return block rows [N, B, D]."""
        rows = rows + self.self_attn(self.input_layernorm(rows), context, anchors)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Draft(nn.Module):
    """A DFlash draft; its parameters have the names of the checkpoint."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.config = config
        self.layer_ids = config["dflash_config"]["target_layer_ids"]
        self.mask_token = config["dflash_config"]["mask_token_id"]
        self.block_size = config["block_size"]
        self.fc = nn.Linear(len(self.layer_ids) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(size, eps)

    def forward(
        self, embedded: torch.Tensor, features: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Return normed hidden states [N, B - 1, D] of embedded blocks [N, B, D].

        `features` [n, F] are the target's hidden states from the first token on.
        """
        n_context = max(int(anchors.max()), 1)
        context = self.hidden_norm(self.fc(features[:n_context]))
        rows = embedded
        for layer in self.layers:
            rows = layer(rows, context, anchors)
        return self.norm(rows[:, 1:])


def block_loss(
    logits: torch.Tensor, batch: dict[str, torch.Tensor], decay: float, distillation: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and which positions [N, B - 1] are right, for logits [N, B - 1, V].

    `batch` has indices into the head: `labels` and `known` [N, B - 1], `teacher` and
    `probabilities` [N, B - 1, K]. Position k has weight exp(-(k - 1) / `decay`).
    """
    logits = logits.float()
    normalizer = logits.logsumexp(-1)
    at_labels = logits.gather(-1, batch["labels"][..., None])[..., 0]
    shares = batch["probabilities"]
    soft = shares.sum(-1) * normalizer - (shares * logits.gather(-1, batch["teacher"])).sum(-1)
    loss = (1 - distillation) * batch["known"] * (normalizer - at_labels) + distillation * soft
    weights = batch["known"] * torch.exp(-torch.arange(logits.shape[1]) / decay)
    right = (logits.argmax(-1) == batch["labels"]) & (batch["known"] > 0)
    return (weights * loss).sum() / weights.sum().clamp_min(1e-6), right


def block_batch(
    tokens: torch.Tensor,
    first: int,
    anchors: torch.Tensor,
    block_size: int,
    teacher: tuple[torch.Tensor, torch.Tensor],
    index_of: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return the batch of `block_loss` for blocks of `tokens` [n] at `anchors` [N].

    `teacher` are ids and probabilities [n - first, K] of the target's next tokens, row i after
    token `first` + i. `index_of` [V of the target] gives each token's index in the head, or -1.
    """
    positions = anchors[:, None] + torch.arange(1, block_size)
    exists = positions < len(tokens)
    labels = index_of[tokens[positions.clamp_max(len(tokens) - 1)]]
    rows = torch.where(exists, positions - 1 - first, 0)
    ids = index_of[teacher[0][rows].long()]
    in_head = (ids >= 0) & exists[..., None]
    return {
        "labels": labels.clamp_min(0),
        "known": (exists & (labels >= 0)).float(),
        "teacher": ids.clamp_min(0),
        "probabilities": teacher[1][rows] * in_head,
    }


class Target:
    """A Llama-style target in PyTorch, one sequence at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: array.to(dtype) for name, array in weights.items()}
        self.embedding = self.weights["model.embed_tokens.weight"]

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, layer_ids: list[int], past: list | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden states [n, F] of `layer_ids` and the final ones [n, D], normed.

        `past` is the KV cache: a list, empty at first, that is extended in place. After the first
        call, `tokens` has one token.
        """
        config, past = self.config, [] if past is None else past
        if not past:
            past.extend([None] * config["num_hidden_layers"])
        start = 0 if past[0] is None else past[0][0].shape[2]
        positions = torch.arange(start, start + len(tokens))[None]
        rows, features = self.embedding[tokens][None], {}
        for index in range(config["num_hidden_layers"]):
            rows, past[index] = self._layer(rows, f"model.layers.{index}.", positions, past[index])
            if index in layer_ids:
                features[index] = rows[0]
        final = rms_norm(rows[0], self.weights["model.norm.weight"], config["rms_norm_eps"])
        return torch.cat([features[index] for index in layer_ids], -1), final

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """Return logits [n, V] of final hidden states [n, D]."""
        return final @ self.embedding.T

    def _layer(
        self, rows: torch.Tensor, name: str, positions: torch.Tensor, past: tuple | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        config, eps = self.config, self.config["rms_norm_eps"]
        normed = rms_norm(rows, self.weights[f"{name}input_layernorm.weight"], eps)
        queries, keys, values = (
            self._linear(normed, f"{name}self_attn.{part}_proj").unflatten(-1, (heads, -1))
            for part, heads in (
                ("q", config["num_attention_heads"]),
                ("k", config["num_key_value_heads"]),
                ("v", config["num_key_value_heads"]),
            )
        )
        keys = rotate(keys.transpose(1, 2), positions, config["rope_theta"])
        values = values.transpose(1, 2)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        mixed = functional.scaled_dot_product_attention(
            rotate(queries.transpose(1, 2), positions, config["rope_theta"]),
            keys,
            values,
            is_causal=past is None,
            enable_gqa=True,
        )
        rows = rows + self._linear(mixed.transpose(1, 2).flatten(2), f"{name}self_attn.o_proj")
        normed = rms_norm(rows, self.weights[f"{name}post_attention_layernorm.weight"], eps)
        gate = functional.silu(self._linear(normed, f"{name}mlp.gate_proj"))
        inner = gate * self._linear(normed, f"{name}mlp.up_proj")
        return rows + self._linear(inner, f"{name}mlp.down_proj"), (keys, values)

    def _linear(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows @ self.weights[f"{name}.weight"].T


def load_draft(folder: Path) -> tuple[Draft, dict[str, torch.Tensor]]:
    """Return the draft in `folder` in float32, and its frozen tensors `d2t` and `lm_head.weight`.

    Reads bfloat16 checkpoints and checkpoints with affine quantization.
    """
    config = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    bits = config.get("quantization", {}).get("bits")
    weights = {}
    for name, array in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        base = name.removesuffix(".weight")
        if f"{base}.scales" in stored:
            array = dequantized(array, stored[f"{base}.scales"], stored[f"{base}.biases"], bits)
        weights[name] = array if name == "d2t" else array.float()
    draft = Draft(config)
    frozen = {name: weights.pop(name) for name in ("d2t", "lm_head.weight") if name in weights}
    draft.load_state_dict(weights)
    return draft, frozen


def dequantized(
    packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int
) -> torch.Tensor:
    """Return the float32 matrix of MLX's affine quantization with 4 or 8 bits.

    Product and sum are rounded to the type of `scales`, as in MLX.
    """
    if bits not in (4, 8):
        raise ValueError(f"the draft has {bits} bits; this script reads 4 and 8")
    words = packed.numpy().view(np.uint32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words[..., None] >> shifts) & np.uint32(2**bits - 1)
    groups = torch.from_numpy(values.astype(np.float32)).reshape(*scales.shape, -1)
    return (groups.to(scales.dtype) * scales[..., None] + biases[..., None]).float().flatten(1)
