"""Rows that target and draft keep of a conversation: append, commit, rollback."""

from dflash_mlx.cache.base import LayerCache, Mask
from dflash_mlx.cache.context import ContextCache
from dflash_mlx.cache.full import STEP, FullCache, LatentCache
from dflash_mlx.cache.joined import JoinedCache
from dflash_mlx.cache.pair import PairCache
from dflash_mlx.cache.recurrent import ConvolutionCache, RecurrentCache
from dflash_mlx.cache.window import WindowCache

__all__ = [
    "STEP",
    "ContextCache",
    "ConvolutionCache",
    "FullCache",
    "JoinedCache",
    "LatentCache",
    "LayerCache",
    "Mask",
    "PairCache",
    "RecurrentCache",
    "WindowCache",
]
