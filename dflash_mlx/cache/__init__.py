"""KV caches of the target and the draft model: append, commit, roll back, snapshot.

It must not know models, tokens or requests.
"""

from dflash_mlx.cache.base import LayerCache, Mask
from dflash_mlx.cache.cache_list import CacheList
from dflash_mlx.cache.context import ContextCache, ContextLayer
from dflash_mlx.cache.kv_cache import STEP, KVCache, LatentCache
from dflash_mlx.cache.pair import PairCache
from dflash_mlx.cache.recurrent import ConvolutionCache, RecurrentCache
from dflash_mlx.cache.rotating import RotatingKVCache

__all__ = [
    "STEP",
    "CacheList",
    "ContextCache",
    "ContextLayer",
    "ConvolutionCache",
    "KVCache",
    "LatentCache",
    "LayerCache",
    "Mask",
    "PairCache",
    "RecurrentCache",
    "RotatingKVCache",
]
