"""One conversation whose KV rows can serve a later prompt.

It must not know other conversations or budgets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_mlx.cache import PairCache

TokenIds = NDArray[np.int32]


def token_ids(ids: Sequence[int] | TokenIds) -> TokenIds:
    """Return `ids` as an int32 array, without a copy where they are one already."""
    array: TokenIds = np.asarray(ids, np.int32)
    return array


def common_length(first: TokenIds, second: TokenIds) -> int:
    """Return the length of the longest common prefix of two arrays of token ids."""
    n = min(len(first), len(second))
    differs = first[:n] != second[:n]
    at = int(differs.argmax()) if n else 0
    return at if n and differs[at] else n


@dataclass(eq=False)
class CachedConversation:
    """KV rows with the tokens that they belong to.

    `ids` has one token per committed row of `cache`; while a request runs, only the prompt's.
    The answer's rows start at `stable`: a prompt that shares at least so many tokens continues
    this conversation, and a prompt that shares fewer branches off. `last_used` counts requests.
    """

    cache: PairCache
    ids: TokenIds
    stable: int = 0
    last_used: int = 0
    running: bool = False
    _idle_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the caches hold; while no request runs they do not change."""
        return self.cache.nbytes if self.running else self._idle_bytes

    def stop_running(self) -> None:
        """Note that the request that used the caches has ended."""
        self.running, self._idle_bytes = False, self.cache.nbytes

    def reusable(self, shared: int) -> int:
        """Return how many tokens this cache can supply to a prompt that shares `shared` with it."""
        return self.cache.reusable_length(min(shared, self.cache.length))
