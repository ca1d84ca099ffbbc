"""Muse Glimmer: normed embeddings, and logits that are scaled and capped."""

import mlx.core as mx

from dflash_mlx.models.targets.windowed import WindowedTarget


class MuseGlimmerTarget(WindowedTarget):
    """Three windowed layers, then a full layer without position encoding.

    A draft shares the embedding before its norm and the head before multiplier and cap, and has
    scales of its own (official dflash 0.1.0, `DFlashDraftModel.bind`).
    """

    def logits(self, hidden: mx.array) -> mx.array:
        """Return the head's projection, scaled and softly capped."""
        cap = self._args.final_logit_softcapping
        logits: mx.array = mx.tanh(self.head(hidden) * self._args.output_multiplier / cap) * cap
        return logits

    def _enter(self, tokens: mx.array) -> mx.array:
        return mx.fast.rms_norm(self.embed(tokens), None, self._body.embed_eps)
