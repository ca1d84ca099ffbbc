"""The prefix cache in memory: which conversation supplies a prompt's rows, and which is evicted.

All methods belong to the thread that owns the caches. It must not know text or requests.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.cache import STEP, PairCache
from dflash_mlx.prefix_cache.conversation import (
    CachedConversation,
    common_length,
    token_ids,
)

MIN_REUSED_TOKENS: Final = 16
"""Shorter prefixes are computed again: most templates start with the same few tokens, and a copy
of the caches costs about as much as a forward pass over these."""

MAX_IDLE: Final = 64
"""Idle conversations held. Each is compared with every prompt (0.4 ms for 64 of 40,000 tokens),
and short requests would otherwise collect thousands of them below any byte budget."""

_HALF_LIFE_REQUESTS: Final = 16
"""Requests after which an unused conversation counts half when one has to be evicted. An agent
with two subagents and a title request sends about four requests a turn, so a conversation that is
still in use is at most a few half-lives old."""


@dataclass(frozen=True)
class Lease:
    """The caches that one request runs with, until `PrefixCache.release`.

    `cached_tokens` tokens of the prompt are in the target's KV cache; the draft's context holds
    rows for `draft_cached_tokens` of them. `first_difference` is the position at which the prompt
    differs from the conversation that shares the longest prefix with it, None without any.
    """

    pool: "PrefixCache"
    conversation: CachedConversation
    cached_tokens: int
    draft_cached_tokens: int
    first_difference: int | None

    @property
    def cache(self) -> PairCache:
        """The caches."""
        return self.conversation.cache

    def grow(self, n_tokens: int) -> None:
        """Make room for `n_tokens` more tokens; see `PrefixCache.grow`."""
        self.pool.grow(self, n_tokens)


class PrefixCache:
    """Conversations of one pair under one byte budget, which running requests count against too.

    Args:
        make_cache: returns an empty cache.
        max_bytes: budget of all conversations together; None for no bound.
        evaluate: waits until arrays are computed.
    """

    def __init__(
        self,
        make_cache: Callable[[], PairCache],
        max_bytes: int | None,
        evaluate: Callable[..., None],
    ) -> None:
        self.max_bytes = max_bytes
        self._make_cache = make_cache
        self._evaluate = evaluate
        self._conversations: list[CachedConversation] = []
        self._n_requests = 0

    @property
    def nbytes(self) -> int:
        """Bytes that all conversations hold."""
        return sum(one.nbytes for one in self._conversations)

    @property
    def n_conversations(self) -> int:
        """Conversations held, running ones included."""
        return len(self._conversations)

    def acquire(self, prompt: Sequence[int], stable: int = 0) -> Lease:
        """Return caches that hold the longest available prefix of `prompt`.

        The last prompt token is always left to compute. A conversation that the prompt continues
        is taken over; one that it branches off from, or that is running, is copied.

        Args:
            prompt: token ids.
            stable: number of tokens that the next prompt of this conversation starts with.
        """
        ids = token_ids(prompt)
        self._n_requests += 1
        shared = [common_length(one.ids, ids) for one in self._conversations]
        source, reused = self._best([min(length, len(ids) - 1) for length in shared])
        if source is None or reused < MIN_REUSED_TOKENS:
            cache, reused = self._make_cache(), 0
        elif self._copies(source, reused):
            source.last_used = self._n_requests
            cache = source.cache.fork(reused)
            self._evaluate(*cache.arrays)
        else:
            self._conversations.remove(source)
            cache = source.cache
            reused = cache.trim_to(reused)
        conversation = CachedConversation(cache, ids, stable, self._n_requests, running=True)
        self._conversations.append(conversation)
        return Lease(
            self,
            conversation,
            cached_tokens=reused,
            draft_cached_tokens=_draft_rows(cache, reused),
            first_difference=max(shared, default=None),
        )

    def release(self, lease: Lease, ids: Sequence[int]) -> None:
        """Keep the caches of a finished request for later prompts.

        Args:
            lease: what `acquire` returned.
            ids: the prompt and the answer's tokens, of which the first `cache.length` have rows.
        """
        conversation = lease.conversation
        conversation.ids = token_ids(ids)[: lease.cache.length].copy()
        conversation.stop_running()
        conversation.last_used = self._n_requests
        if conversation in self._conversations and lease.cache.length == 0:
            self._conversations.remove(conversation)
        self.make_room(0)

    def discard(self, lease: Lease) -> None:
        """Drop the caches of a request that failed or whose conversation was cleared."""
        if lease.conversation in self._conversations:
            self._conversations.remove(lease.conversation)

    def grow(self, lease: Lease, n_tokens: int) -> None:
        """Make room for `n_tokens` more tokens of a running request.

        What the other running requests leave of the budget becomes the bound of its caches, which
        raise `OutOfMemoryBudget` above it.
        """
        if self.max_bytes is None:
            return
        cache = lease.cache
        row_bytes = cache.nbytes // max(cache.length, 1)
        self.make_room((n_tokens + 2 * STEP) * row_bytes)  # target and draft grow in such steps
        others = (one for one in self._conversations if one.running)
        taken = sum(one.nbytes for one in others if one.cache is not cache)
        cache.max_bytes = max(self.max_bytes - taken, 0)

    def make_room(self, n_bytes: int) -> bool:
        """Evict idle conversations until `n_bytes` more fit; return whether they fit."""
        idle = [one for one in self._conversations if not one.running]
        while len(idle) > MAX_IDLE or self._exceeds(n_bytes):
            if not idle:
                return False
            evicted = min(idle, key=self._value)
            idle.remove(evicted)
            self._conversations.remove(evicted)
            mx.clear_cache()
        return True

    def clear(self) -> None:
        """Drop all idle conversations."""
        self._conversations = [one for one in self._conversations if one.running]

    def _exceeds(self, n_bytes: int) -> bool:
        """Return whether `n_bytes` more are above the budget."""
        return self.max_bytes is not None and self.nbytes + n_bytes > self.max_bytes

    def _copies(self, source: CachedConversation, reused: int) -> bool:
        """Return whether `source` is copied and kept; evict others to make room for the copy."""
        if source.running:
            return True
        if reused >= source.stable:
            return False
        source.running = True  # not evicted for its own copy
        fits = self.make_room(source.cache.nbytes * reused // max(source.cache.length, 1))
        source.running = False
        return fits

    def _best(self, shared: Sequence[int]) -> tuple[CachedConversation | None, int]:
        """Return the conversation that supplies most of a prompt, and how many tokens.

        `shared` are the tokens that the prompt shares with each conversation.
        """
        best: CachedConversation | None = None
        reused = 0
        for one, length in zip(self._conversations, shared, strict=True):
            found = one.reusable(length)
            # at equal length an idle conversation saves the copy
            if found > reused or (found == reused and best and best.running and not one.running):
                best, reused = one, found
        return best, reused

    def _value(self, conversation: CachedConversation) -> float:
        """Return the benefit per byte of keeping an idle conversation.

        Benefit is the number of tokens that no other conversation could supply, halved for every
        `_HALF_LIFE_REQUESTS` requests without use: a short title prompt cannot displace an agent's
        long one, and of two branches the shorter tail goes first.
        """
        others = (one for one in self._conversations if one is not conversation)
        covered = max((common_length(one.ids, conversation.ids) for one in others), default=0)
        exclusive = len(conversation.ids) - covered
        age = (self._n_requests - conversation.last_used) / _HALF_LIFE_REQUESTS
        return exclusive * math.pow(0.5, age) / max(conversation.cache.nbytes, 1)


def _draft_rows(cache: PairCache, length: int) -> int:
    """Return `length` less the rows that the draft's context lacks of those visible after it."""
    if cache.context is None:
        return 0
    missing = 0
    for layer in cache.context.layers:
        visible = length if layer.limit is None else min(layer.limit, length)
        held = int((layer.positions >= length - visible).sum())
        missing = max(missing, visible - held)
    return length - missing
