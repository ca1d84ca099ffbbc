"""Gemma 4: windowed and full layers, some reading the rows of an earlier one, capped logits."""

from collections.abc import Sequence
from typing import Any, ClassVar

import mlx.core as mx
from mlx_lm.models.gemma4_text import logit_softcap

from dflash_mlx.cache import LayerCache, Mask
from dflash_mlx.models.protocols import TargetOutput
from dflash_mlx.models.targets.windowed import WindowedTarget


class Gemma4Target(WindowedTarget):
    """An mlx-lm `gemma4` or `gemma4_text` model with taps; `gemma4_unified` is read as the first.

    The last layers may keep no rows of their own: they attend over the keys and values that the
    last layer of their kind before them got from its cache.
    """

    model_types: ClassVar[tuple[str, ...]] = ("gemma4", "gemma4_unified", "gemma4_text")

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer that keeps rows of its own."""
        owners = [layer for layer in self._body.layers if layer.self_attn.has_kv]
        return [self._cache(self._slides(layer)) for layer in owners]

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n], scaled by the root of D."""
        scaled: mx.array = super().embed(tokens) * self._body.embed_scale
        return scaled

    def forward(
        self, tokens: mx.array, caches: Sequence[LayerCache], target_layer_ids: Sequence[int]
    ) -> TargetOutput:
        """Run `tokens` [1, n] through all layers, appending their rows to `caches`."""
        hidden = self.embed(tokens)
        inputs = self._inputs(tokens, hidden)
        made = self.masks(hidden, caches)
        masks: list[Mask] = []
        kept: list[tuple[Any, Any]] = []  # keys and values, and the position, of every layer
        outputs: dict[int, mx.array] = {}
        for index, layer in enumerate(self._body.layers):
            owner = self._body.previous_kvs[index]
            own = owner == index
            masks.append(made[index] if own else masks[owner])
            shared, position = (None, None) if own else kept[owner]
            hidden, *rows = layer(
                hidden,
                masks[index],
                caches[index] if own else None,
                per_layer_input=inputs[index],
                shared_kv=shared,
                offset=position,
            )
            kept.append((rows[0], rows[1]))
            if index in target_layer_ids:
                outputs[index] = hidden
        return self._output(hidden, [outputs[index] for index in target_layer_ids])

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the head's projection with the soft cap that the target predicts through."""
        cap, projected = self._text.final_logit_softcapping, self.head(hidden)
        capped: mx.array = projected if cap is None else logit_softcap(cap, projected)
        return capped

    def _inputs(self, tokens: mx.array, hidden: mx.array) -> list[mx.array | None]:
        """Return what small Gemma 4 models feed to each layer besides, [1, n, d] each."""
        body = self._body
        if not body.hidden_size_per_layer_input:
            return [None] * len(body.layers)
        # these models look a second embedding up by the same tokens; mlx-lm's body does both
        rows = body._project_per_layer_inputs(hidden, body._get_per_layer_inputs(tokens))
        return [rows[:, :, index, :] for index in range(len(body.layers))]

    def _slides(self, layer: Any) -> bool:
        return bool(layer.self_attn.is_sliding)
