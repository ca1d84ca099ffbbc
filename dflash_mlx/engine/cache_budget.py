"""How many bytes the KV caches of all conversations of an engine may take together.

It must not know models or requests.
"""

from typing import Final

import mlx.core as mx

from dflash_mlx.config import CacheConfig
from dflash_mlx.system.machine import memory_here
from dflash_mlx.system.memory import device_bytes

_SHARE_OF_FREE: Final = 0.5
"""Share of the memory that is free after loading. The other half is working memory, which takes
up to 15% of weights and caches, and room for other programs."""


def cache_budget(config: CacheConfig) -> int | None:
    """Return the byte budget of the prefix cache: the configured one, or half of what is free.

    None where neither the configuration nor the operating system gives a number.
    """
    if config.max_bytes is not None:
        return config.max_bytes
    _, free = memory_here()
    device = device_bytes()
    if device is not None:
        left = max(device - mx.get_active_memory(), 0)
        free = left if free is None else min(free, left)
    return None if free is None else int(_SHARE_OF_FREE * free)
