"""Muse Glimmer: three windowed layers to a full one without positions, normed embeddings."""

from typing import Any, ClassVar

import mlx.core as mx

from dflash_mlx.models.targets.windowed import WindowedTarget


class MuseGlimmerTarget(WindowedTarget):
    """An mlx-lm `muse_glimmer` model with taps.

    A draft borrows the embedding without its norm and the head without multiplier and cap, and
    brings scales of its own (official dflash 0.1.0, `DFlashDraftModel.bind`).
    """

    model_types: ClassVar[tuple[str, ...]] = ("muse_glimmer",)

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the head's projection, scaled and softly capped."""
        cap = self._args.final_logit_softcapping
        logits: mx.array = mx.tanh(self.head(hidden) * self._args.output_multiplier / cap) * cap
        return logits

    def _enter(self, tokens: mx.array) -> mx.array:
        return mx.fast.rms_norm(self.embed(tokens), None, self._body.embed_eps)

    def _slides(self, layer: Any) -> bool:
        return bool(layer.self_attn.is_sliding)
