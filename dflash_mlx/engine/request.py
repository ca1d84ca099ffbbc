"""One answer in the making: prefill, decode, text out. Lives on the worker thread."""

import secrets
import threading
import time
from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.cache import PairCache
from dflash_mlx.config import GenerationConfig
from dflash_mlx.decode.accept import request_rule
from dflash_mlx.decode.history import History
from dflash_mlx.decode.logits_processors import make_processors
from dflash_mlx.decode.loop import DecodeConfig, State, catch_up, decode
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.engine.answer_text import AnswerText
from dflash_mlx.engine.feed import Feed
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.stats import Meter, Stats, rate
from dflash_mlx.engine.stream import Chunk, FinishReason, Result
from dflash_mlx.engine.thinking import ThinkingSplitter
from dflash_mlx.errors import BadRequest, OutOfMemoryBudget

_TIDY_EVERY = 256
"""Tokens after which MLX lets go of buffers that grown caches have left behind, as mlx-lm does."""


class Request:
    """Answers the prompt `ids`, putting chunks into `feed` until done or `cancelled`.

    `history` is every token so far, prompt first; rows of the cache belong to its beginning.

    Raises:
        BadRequest: the prompt is empty or does not fit the context.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        ids: Sequence[int],
        config: GenerationConfig,
        feed: Feed[Chunk],
        cancelled: threading.Event,
    ) -> None:
        self.history = History(ids)
        self._loaded = loaded
        self._config = config
        self._feed = feed
        self._cancelled = cancelled
        self._sampling = config.sampling or loaded.sampling
        seed = self._sampling.seed
        self._seed = secrets.randbelow(2**32) if seed is None else seed
        self._limit = min(config.max_tokens, self._room())
        self._policy = loaded.policy(config)
        tokenizer = loaded.tokenizer
        ends = tokenizer.eos_token_ids | tokenizer.special_ids(config.stop)
        self._text = AnswerText(tokenizer.decode, ends, config.stop)
        self._splitter = ThinkingSplitter(tokenizer.thinking_marks, tokenizer.opens_thought(ids))
        self._meter = Meter()
        self._written: list[str] = []

    def run(self, cache: PairCache, cached: int, stable: int = 0) -> Result:
        """Return the finished answer. `cache` holds the first `cached` tokens of the prompt.

        The first `stable` tokens will begin the next prompt of this conversation too.
        """
        n_prompt = len(self.history)
        for notice in self._loaded.notices(self._config):
            self._feed.put(Chunk(notice=notice))
        if self._limit < self._config.max_tokens:
            self._feed.put(Chunk(notice=f"the context has room for {self._limit} more tokens"))
        began = time.perf_counter()
        state = self._read(cache, cached, stable)
        prefill_s = time.perf_counter() - began
        finished = state is not None and self._write(cache, state)
        self._emit(self._text.finish(), ())
        self._emit_pieces(self._splitter.finish(), ())
        return Result(
            text="".join(self._written),
            tokens=tuple(self._text.tokens),
            finish_reason=self._reason(finished),
            prompt_tokens=n_prompt,
            cached_tokens=cached,
            generated_tokens=len(self._text.tokens),
            model=self._loaded.model_name,
            draft=self._loaded.draft_name,
            seed=None if self._sampling.greedy else self._seed,
            stats=self._stats(n_prompt - 1 - cached, prefill_s),
        )

    def _room(self) -> int:
        """Return how many tokens of an answer the context can hold."""
        if not self.history:
            raise BadRequest("the prompt has no tokens; give it some text")
        room = self._loaded.context_length - len(self.history) + 1
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(self.history)} tokens and the context holds "
                f"{self._loaded.context_length}; shorten the prompt or begin a new conversation"
            )
        return room

    def _read(self, cache: PairCache, cached: int, stable: int) -> State | None:
        """Prefill the prompt; None when cancelled."""

        def progress(done: int, total: int) -> bool:
            self._feed.put(Chunk(progress=(done - cached, total - cached)))
            return not self._cancelled.is_set()

        n_rows = self._loaded.cache_config.prefill_step_size
        return prefill(self._loaded.pair, cache, self.history, n_rows, progress, stable)

    def _write(self, cache: PairCache, state: State) -> bool:
        """Decode to the end; return whether nobody cancelled before it."""
        loaded = self._loaded
        processors = make_processors(self._sampling, self._config.logits_processors)
        rule = request_rule(self._sampling, self._seed, processors)
        pair = loaded.pair.with_sampling(self._sampling.temperature, self._seed)
        plan = DecodeConfig(self._policy, rule, self._text.cut, self._limit)
        n_prompt = len(self.history)
        told = False
        try:
            for done, after in decode(pair, cache, state, plan):
                state = after
                self.history = state.history
                before = self._meter.committed
                self._meter.add(done)
                if self._meter.committed // _TIDY_EVERY > before // _TIDY_EVERY:
                    mx.clear_cache()
                self._emit(self._text.take(), done.tokens)
                self._meter.park(self._policy.disabled_reason, len(self.history) - n_prompt)
                if self._policy.broken and not told:
                    told = True
                    self._feed.put(
                        Chunk(notice=f"drafting stopped: {self._policy.disabled_reason}")
                    )
                if self._cancelled.is_set() and not state.ended:
                    return False
        except OutOfMemoryBudget as error:
            self._feed.put(Chunk(notice=str(error)))
        finally:
            catch_up(pair, cache, state)
            self._loaded.learn(self._policy)
        return True

    def _emit(self, text: str, tokens: tuple[int, ...]) -> None:
        self._emit_pieces(self._splitter.feed(text), tokens)

    def _emit_pieces(self, pieces: list[tuple[str, bool]], tokens: tuple[int, ...]) -> None:
        """Put pieces of text into the feed, the round's tokens with the first of them."""
        for text, thinking in pieces or ([("", self._splitter.inside)] if tokens else []):
            self._written.append(text)
            self._feed.put(Chunk(text=text, tokens=tokens, thinking=thinking))
            tokens = ()

    def _reason(self, finished: bool) -> FinishReason:
        if self._text.ended:
            return "stop"
        return "length" if finished else "cancelled"

    def _stats(self, n_prefilled: int, prefill_s: float) -> Stats:
        meter, draft_s = self._meter, self._meter.draft_s
        return Stats(
            rounds=meter.rounds,
            drafted=meter.drafted,
            accepted=meter.accepted,
            acceptance=meter.accepted / meter.drafted if meter.drafted else None,
            tokens_per_round=meter.committed / meter.rounds if meter.rounds else None,
            accepted_lengths=dict(sorted(meter.lengths.items())),
            accepted_by_position=meter.by_position(),
            drafted_by_position=meter.tried_by_position(),
            prefill_s=prefill_s,
            decode_s=meter.decode_s,
            prefill_tps=rate(n_prefilled, prefill_s),
            decode_tps=rate(meter.committed, meter.decode_s),
            draft_s=draft_s,
            verify_s=None if draft_s is None else meter.decode_s - draft_s,
            host_reads=meter.host_reads,
            block_size=self._loaded.block_size(self._config),
            path="dflash" if self._loaded.block_size(self._config) > 1 else "plain",
            disabled_at=meter.disabled_at,
            reason=meter.reason,
            peak_memory_bytes=mx.get_peak_memory(),
            blas=self._loaded.blas,
        )
