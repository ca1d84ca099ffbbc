"""A target model with the draft model bound to it.

This module must not know files, tokens or requests.
"""

from dataclasses import dataclass

from dflash_mlx.cache import PairCache
from dflash_mlx.models.protocols import Draft, Target


@dataclass(frozen=True)
class Pair:
    """A target and the draft bound to it, if there is one. Holds weights, no cache rows."""

    target: Target
    draft: Draft | None = None

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Target layers whose hidden states the draft reads; empty without a draft."""
        return self.draft.target_layer_ids if self.draft else ()

    def with_sampling(self, temperature: float, seed: int) -> "Pair":
        """Return the pair for a request with this `temperature` and `seed`.

        A draft that supports it then draws its tokens instead of taking the argmax.
        """
        draft = self.draft.with_sampling(temperature, seed) if self.draft else None
        return Pair(self.target, draft)

    def make_cache(self, max_bytes: int | None = None) -> PairCache:
        """Return an empty cache of at most `max_bytes` bytes for one conversation."""
        context = self.draft.make_context() if self.draft else None
        return PairCache(self.target.make_caches(), context, max_bytes)
