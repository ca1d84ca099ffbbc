"""Rows that target and draft keep of a conversation: append, commit, rollback."""

from dflash_mlx.cache.base import LayerCache
from dflash_mlx.cache.context import ContextCache
from dflash_mlx.cache.full import FullCache
from dflash_mlx.cache.pair import PairCache

__all__ = ["ContextCache", "FullCache", "LayerCache", "PairCache"]
