"""A target run layer by layer: embedding, layers, norm, head, with hidden states on request.

Weights and layer modules are mlx-lm's. A family that differs subclasses `DecoderTarget`.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from dflash_mlx.cache import KVCache, LayerCache, Mask
from dflash_mlx.models.protocols import FusedArgmax, TargetOutput, TargetShape, no_fused_argmax

_ANY_LENGTH = 2**20
"""Context length where a configuration gives none: at least that of every published target."""

_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""Names that mlx-lm's arguments use for the number of routed experts per token."""


class DecoderTarget:
    """A target whose layers are called as `layer(hidden, mask, cache)`.

    `model` is an mlx-lm `Model` holding the weights. The text model is that or, in multimodal
    packagings, its `language_model`; it has `args`, `model` (with `embed_tokens`, `layers` and
    `norm`) and, unless the embedding is the head, `lm_head`. `context_length` is the number of
    tokens that the configuration allows, None to take it from mlx-lm's arguments.
    """

    def __init__(self, model: nn.Module, context_length: int | None = None) -> None:
        self.model = model
        self._context_length = context_length
        text: Any = getattr(model, "language_model", model)
        self._text: Any = text
        self._body: Any = text.model
        self._args: Any = text.args
        self.fused_argmax: FusedArgmax = no_fused_argmax
        """Finds the best token of each row of `hidden` [1, n, D] without logits, or gives None."""

    @cached_property
    def shape(self) -> TargetShape:
        """The facts that caches, drafts and users depend on; read after the weights are final."""
        return TargetShape(
            family=self.model.args.model_type,
            hidden_size=self._args.hidden_size,
            n_layers=len(self._body.layers),
            vocab_size=self._args.vocab_size,
            context_length=self._context_length
            or getattr(self._args, "max_position_embeddings", None)
            or _ANY_LENGTH,
            row_bytes=self._row_bytes(),
            step_bytes=step_bytes(self.model, self._args, self._last_layer),
        )

    @property
    def is_bare(self) -> bool:
        """Whether the forward pass is mlx-lm's embedding, layers, norm and head, nothing else.

        The converter runs such targets one layer at a time, by mlx-lm's names.
        """
        parts = ("embed", "forward", "logits", "_enter", "_norm")
        own = any(getattr(type(self), part) is not getattr(DecoderTarget, part) for part in parts)
        return self._text is self.model and not own

    @property
    def head_layer(self) -> nn.Module | None:
        """The layer that alone computes the logits; None where a family scales or caps them."""
        own = any(
            getattr(type(self), part) is not getattr(DecoderTarget, part)
            for part in ("head", "logits")
        )
        if own:
            return None
        return self._last_layer

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is also the head."""
        return "lm_head" not in self._text

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows."""
        return [KVCache() for _ in self._body.layers]

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n]."""
        embedded: mx.array = self._body.embed_tokens(tokens)
        return embedded

    def forward(
        self, tokens: mx.array, caches: Sequence[LayerCache], target_layer_ids: Sequence[int]
    ) -> TargetOutput:
        """Run `tokens` [1, n] through all layers and append their rows to `caches`.

        The features are the outputs of the layers `target_layer_ids`, concatenated.
        """
        hidden = self._enter(tokens)
        masks = self.masks(hidden, caches)
        outputs: dict[int, mx.array] = {}
        for index, layer in enumerate(self._body.layers):
            hidden = self.run_layer(layer, hidden, masks[index], caches[index])
            if index in target_layer_ids:
                outputs[index] = hidden
        return self._output(hidden, [outputs[index] for index in target_layer_ids])

    def head(self, hidden: mx.array) -> mx.array:
        """Project normed `hidden` [1, n, D] to [1, n, V]."""
        head = self._body.embed_tokens.as_linear if self.is_tied else self._text.lm_head
        projected: mx.array = head(hidden)
        return projected

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits [1, n, V] that the target predicts with."""
        return self.head(hidden)

    def masks(self, hidden: mx.array, caches: Sequence[LayerCache]) -> list[Mask]:
        """Return one mask per cache for n new rows; caches of one kind share their mask."""
        made: dict[Hashable, Mask] = {}
        for cache in caches:
            if cache.kind not in made:
                made[cache.kind] = cache.mask(hidden.shape[1])
        return [made[cache.kind] for cache in caches]

    def run_layer(self, layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
        """Return a layer's output [1, n, D] and append its rows to `cache`."""
        output: mx.array = layer(hidden, mask, cache)
        return output

    def _enter(self, tokens: mx.array) -> mx.array:
        """Return the input [1, n, D] of the first layer."""
        return self.embed(tokens)

    def _norm(self, hidden: mx.array) -> mx.array:
        """Return `hidden` [1, n, D] after the final norm."""
        normed: mx.array = self._body.norm(hidden)
        return normed

    def _output(self, hidden: mx.array, outputs: list[mx.array]) -> TargetOutput:
        features = outputs or [mx.zeros((1, hidden.shape[1], 0))]
        return TargetOutput(self._norm(hidden), mx.concatenate(features, axis=-1))

    def _row_bytes(self) -> int:
        """Return the bytes one token adds to the caches; the forward pass is not evaluated."""
        caches = self.make_caches()
        self.forward(mx.zeros((1, 1), mx.int32), caches, ())
        return sum(cache.row_bytes for cache in caches)

    @property
    def _last_layer(self) -> nn.Module:
        """The layer that holds the head's weights."""
        layer: nn.Module = self._body.embed_tokens if self.is_tied else self._text.lm_head
        return layer


def step_bytes(model: nn.Module, args: Any, head: nn.Module) -> int:
    """Return the bytes of weights that one decoded token of `model` reads.

    Routed experts count by the share a token uses, an embedding by one row unless it is also the
    `head`. `args` are those of the text model.
    """
    used = next((n for name in _EXPERTS_PER_TOKEN if (n := getattr(args, name, None))), None)
    n_bytes = 0.0
    for module in model.modules():
        own = (value for name, value in module.items() if name[0] != "_")
        n_own = sum(value.nbytes for value in own if isinstance(value, mx.array))
        share = 1.0
        if isinstance(module, SwitchLinear | QuantizedSwitchLinear) and used:
            share = used / module.num_experts
        elif isinstance(module, nn.Embedding | nn.QuantizedEmbedding) and module is not head:
            share = 1 / module.weight.shape[0]
        n_bytes += share * n_own
    return round(n_bytes)
