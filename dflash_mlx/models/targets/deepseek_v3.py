"""DeepSeek-V3 and what is built like it (Kimi K2 to K2.7): latent attention, routed experts."""

from typing import ClassVar

from dflash_mlx.cache import LatentCache, LayerCache
from dflash_mlx.models.targets.decoder import DecoderTarget


class DeepseekV3Target(DecoderTarget):
    """An mlx-lm `deepseek_v3` or `kimi_k25` model with taps; `kimi_k2` is read as the first."""

    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v3", "kimi_k2", "kimi_k25")

    def make_caches(self) -> list[LayerCache]:
        """Return an empty cache of compressed rows for every layer."""
        return [LatentCache() for _ in self._body.layers]
