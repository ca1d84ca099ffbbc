"""Gemma 3 and Gemma 4: windowed and full layers, scaled embeddings."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.gemma4_text import logit_softcap

from dflash_mlx.cache import LayerCache, Mask
from dflash_mlx.models.protocols import TargetOutput
from dflash_mlx.models.targets.windowed import WindowedTarget


class Gemma3Target(WindowedTarget):
    """Five windowed layers to a full one."""

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n], scaled by the root of D."""
        embedded = super().embed(tokens)
        # the model was trained with the scale rounded to bfloat16, whatever the weights are
        scale = mx.array(self._args.hidden_size**0.5, mx.bfloat16)
        return embedded * scale.astype(embedded.dtype)


class Gemma4Target(WindowedTarget):
    """Windowed and full layers, capped logits, and in small models per-layer inputs.

    The last layers may cache no rows: they attend to the keys and values of the last layer of
    their kind that does.
    """

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows of its own."""
        owners = [layer for layer in self._body.layers if layer.self_attn.has_kv]
        return [self._cache(self._is_windowed(layer)) for layer in owners]

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n], scaled by the root of D."""
        scaled: mx.array = super().embed(tokens) * self._body.embed_scale
        return scaled

    def forward(
        self, tokens: mx.array, caches: Sequence[LayerCache], target_layer_ids: Sequence[int]
    ) -> TargetOutput:
        """Run `tokens` [1, n] through all layers and append their rows to `caches`."""
        hidden = self.embed(tokens)
        inputs = self._inputs(tokens, hidden)
        made = self.masks(hidden, caches)
        masks: list[Mask] = []
        shared_rows: list[tuple[Any, Any]] = []  # keys and values, and the offset, of each layer
        outputs: dict[int, mx.array] = {}
        for index, layer in enumerate(self._body.layers):
            owner = self._body.previous_kvs[index]
            own = owner == index
            masks.append(made[index] if own else masks[owner])
            shared, position = (None, None) if own else shared_rows[owner]
            hidden, *rows = layer(
                hidden,
                masks[index],
                caches[index] if own else None,
                per_layer_input=inputs[index],
                shared_kv=shared,
                offset=position,
            )
            shared_rows.append((rows[0], rows[1]))
            if index in target_layer_ids:
                outputs[index] = hidden
        return self._output(hidden, [outputs[index] for index in target_layer_ids])

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the head's projection, softly capped where the configuration has a cap."""
        cap, projected = self._text.final_logit_softcapping, self.head(hidden)
        capped: mx.array = projected if cap is None else logit_softcap(cap, projected)
        return capped

    def _inputs(self, tokens: mx.array, hidden: mx.array) -> list[mx.array | None]:
        """Return the per-layer inputs [1, n, d] of small Gemma 4 models; None for the others."""
        body = self._body
        if not body.hidden_size_per_layer_input:
            return [None] * len(body.layers)
        # the second embedding table is indexed by the same tokens; mlx-lm's body projects both
        rows = body._project_per_layer_inputs(hidden, body._get_per_layer_inputs(tokens))
        return [rows[:, :, index, :] for index in range(len(body.layers))]
