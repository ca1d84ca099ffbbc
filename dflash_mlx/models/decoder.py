"""The walk over an ordinary decoder: embedding, layers with taps between them, norm, head.

Weights and layer modules are mlx-lm's; nothing in them is replaced or hooked. A family file
subclasses this and overrides what its architecture does differently.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.cache import FullCache, LayerCache
from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.models.protocols import TargetShape, Walked

Mask = mx.array | str | None


class DecoderTarget:
    """A target whose layers are called as `layer(hidden, mask, cache)`.

    `model` is an mlx-lm `Model` holding the weights; `model.model` has `embed_tokens`, `layers`
    and `norm`, and the head is `model.lm_head` or the tied embedding.
    """

    model_types: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._body = model.model
        self._args = model.args
        self._refuse_unknown()
        self.shape = TargetShape(
            family=self._args.model_type,
            hidden_size=self._args.hidden_size,
            n_layers=len(self._body.layers),
            vocab_size=self._args.vocab_size,
            max_rows=self._args.max_position_embeddings or 2**20,
            row_bytes=self._row_bytes(),
        )

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache for every layer."""
        return [FullCache() for _ in self._body.layers]

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the embeddings [1, n, D] of `tokens` [1, n]."""
        embedded: mx.array = self._body.embed_tokens(tokens)
        return embedded

    def walk(self, tokens: mx.array, caches: Sequence[LayerCache], taps: Sequence[int]) -> Walked:
        """Run `tokens` [1, n] through all layers, appending their rows to `caches`."""
        hidden = self.embed(tokens)
        masks = self.masks(hidden, caches)
        outputs: dict[int, mx.array] = {}
        for index, layer in enumerate(self._body.layers):
            hidden = layer(hidden, masks[index], caches[index])
            if index in taps:
                outputs[index] = hidden
        features = [outputs[index] for index in taps] or [mx.zeros((1, hidden.shape[1], 0))]
        return Walked(self._body.norm(hidden), mx.concatenate(features, axis=-1))

    def head(self, hidden: mx.array) -> mx.array:
        """Project normed `hidden` [1, n, D] to [1, n, V]."""
        tied = getattr(self._args, "tie_word_embeddings", False)
        head = self._body.embed_tokens.as_linear if tied else self.model.lm_head
        projected: mx.array = head(hidden)
        return projected

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the logits [1, n, V] that the target predicts with."""
        return self.head(hidden)

    def masks(self, hidden: mx.array, caches: Sequence[LayerCache]) -> list[Mask]:
        """Return one attention mask per layer, as mlx-lm makes it for a growing cache."""
        mask: Mask = "causal" if hidden.shape[1] > 1 else None
        return [mask] * len(caches)

    def _row_bytes(self) -> int:
        """Bytes that one token adds to the caches: a key and a value per layer and head."""
        args = self._args
        head_dim = getattr(args, "head_dim", None) or args.hidden_size // args.num_attention_heads
        width = 2 * args.num_key_value_heads * head_dim
        return len(self._body.layers) * width * self._dtype().size

    def _dtype(self) -> mx.Dtype:
        """The type of activations: that of the first norm's weight."""
        dtype: mx.Dtype = self._body.norm.weight.dtype
        return dtype

    def _refuse_unknown(self) -> None:
        """Raise UnsupportedModel for a variant whose walk is another."""
        layer_types: Any = getattr(self._args, "layer_types", None) or []
        if "sliding_attention" in layer_types:
            raise UnsupportedModel(
                f"this {self._args.model_type} model has sliding-window layers, which this walk "
                "does not serve; run it with --draft none in mlx-lm"
            )
