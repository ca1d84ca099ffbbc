"""The generation of one answer on the worker thread: prefill, decode, text.

It must not know messages, templates or conversations.
"""

import threading
from collections.abc import Collection, Generator, Sequence

import mlx.core as mx

from dflash_mlx.controller.text_policy import TextPolicy
from dflash_mlx.decode.accept import request_rule
from dflash_mlx.decode.history import History
from dflash_mlx.decode.logits_processors import make_processors
from dflash_mlx.decode.loop import DecodeConfig, DecodeState, decode, update_context
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.decode.round import Stopwatch
from dflash_mlx.engine.answer.collector import AnswerCollector
from dflash_mlx.engine.answer.parser import Segment, answer_parser
from dflash_mlx.engine.answer.text import AnswerText
from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.resolved_request import ResolvedRequest
from dflash_mlx.engine.stats import RoundCounters, Stats, rate
from dflash_mlx.engine.stream import Chunk, FinishReason, Result
from dflash_mlx.errors import BadRequest, OutOfMemoryBudget
from dflash_mlx.prefix_cache.pool import Lease

_CLEAR_CACHE_EVERY = 256
"""Tokens between two releases of MLX's unused buffers, as in mlx-lm: KV caches that grow leave
their old buffers there."""


class Generation:
    """One answer to the prompt `ids`; `run` puts its chunks into `chunks` until done or cancelled.

    `history` holds the prompt and the committed tokens. The KV caches hold a prefix of it.

    Raises:
        BadRequest: the prompt is empty or does not fit the context.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        request: ResolvedRequest,
        ids: Sequence[int],
        chunks: ClosableQueue[Chunk],
        cancelled: threading.Event,
    ) -> None:
        self.history = History(ids)
        self._loaded = loaded
        self._request = request
        self._chunks = chunks
        self._cancelled = cancelled
        self._limit = min(request.max_tokens, self._room())
        self._policy = request.new_policy()
        tokenizer = loaded.tokenizer
        self._text = AnswerText(
            tokenizer.decode, request.end_token_ids, request.stop, request.stop_tokens
        )
        form = tokenizer.answer_format
        self._parser = answer_parser(form, tokenizer.tail(ids), bool(request.tools))
        self._events = AnswerCollector(form, request.tools)
        self._counters = RoundCounters()
        self._written: list[str] = []
        self._prefill_s = 0.0

    def steps(self, lease: Lease, boundaries: Collection[int]) -> Generator[None, None, Result]:
        """Generate the answer, one prefill chunk or one round per step, and return it.

        Args:
            lease: KV caches that hold the start of the prompt.
            boundaries: numbers of prompt tokens that later prompts may start with.
        """
        cached = lease.cached_tokens
        n_prompt = len(self.history)
        for notice in self._request.notices:
            self._chunks.put(Chunk(notice=notice))
        if self._limit < self._request.max_tokens:
            self._chunks.put(Chunk(notice=f"the context has room for {self._limit} more tokens"))
        state = yield from self._prefill(lease, boundaries)
        finished = state is not None and (yield from self._decode(lease, state))
        self._emit(self._text.finish(), ())
        self._emit_segments(self._parser.finish(), ())
        if last := self._events.finish():
            self._chunks.put(Chunk(events=tuple(last)))
        return Result(
            text="".join(self._written),
            content=self._events.content,
            reasoning=self._events.reasoning,
            tool_calls=tuple(self._events.tool_calls),
            tokens=tuple(self._text.tokens),
            finish_reason=self._finish_reason(finished),
            stop=self._text.stop,
            prompt_tokens=n_prompt,
            cached_tokens=cached,
            draft_cached_tokens=lease.draft_cached_tokens,
            generated_tokens=len(self._text.tokens),
            model=self._loaded.model_name,
            draft=self._loaded.draft_name,
            seed=None if self._request.sampling.greedy else self._request.seed,
            stats=self._stats(n_prompt - 1 - cached, self._prefill_s),
        )

    def _room(self) -> int:
        """Return the number of answer tokens that fit the context."""
        if not self.history:
            raise BadRequest("the prompt has no tokens; give it some text")
        room = self._loaded.context_length - len(self.history) + 1
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(self.history)} tokens and the context holds "
                f"{self._loaded.context_length}; shorten the prompt or start a new conversation"
            )
        return room

    def _prefill(
        self, lease: Lease, boundaries: Collection[int]
    ) -> Generator[None, None, DecodeState | None]:
        """Prefill the prompt, one chunk per step; return None if the request was cancelled."""
        end, cached = len(self.history) - 1, lease.cached_tokens
        step = self._loaded.cache_config.prefill_step_size
        watch = Stopwatch()
        for n_read in prefill(self._loaded.pair, lease.cache, self.history, step, boundaries):
            self._prefill_s = watch.elapsed()
            self._chunks.put(Chunk(progress=(n_read - cached, end - cached)))
            if n_read == end:
                break
            if self._cancelled.is_set():
                return None
            lease.grow(min(step, end - n_read))
            with watch.paused():
                yield
        return DecodeState(self.history)

    def _decode(self, lease: Lease, state: DecodeState) -> Generator[None, None, bool]:
        """Decode, one round per step; return False if the request was cancelled before its end."""
        sampling, seed = self._request.sampling, self._request.seed
        processors = make_processors(sampling, self._request.logits_processors)
        rule = request_rule(sampling, seed, processors)
        pair = self._loaded.pair.with_sampling(sampling.temperature, seed)
        text = self._text_policy()
        policy = text or self._policy
        config = DecodeConfig(policy, rule, self._text.cut, self._limit, text)
        n_prompt, counters = len(self.history), self._counters
        reported = False
        try:
            for done, after in decode(pair, lease.cache, state, config):
                state = after
                self.history = state.history
                before = counters.committed
                counters.add(done)
                if counters.committed // _CLEAR_CACHE_EVERY > before // _CLEAR_CACHE_EVERY:
                    mx.clear_cache()
                self._emit(self._text.take(), done.tokens)
                reason = self._policy.disabled_reason
                counters.set_disabled(reason, len(self.history) - n_prompt)
                if self._policy.disabled_for_request and not reported:
                    reported = True
                    self._chunks.put(Chunk(notice=f"drafting stopped: {reason}"))
                if self._cancelled.is_set() and not state.ended:
                    return False
                lease.grow(self._request.block_size)
                yield
        except OutOfMemoryBudget as error:
            self._chunks.put(Chunk(notice=str(error)))
        finally:
            update_context(pair, lease.cache, state)
            self._loaded.learn(self._policy)
            self._loaded.text.keep_index(text)
        return True

    def _text_policy(self) -> TextPolicy | None:
        """Return the policy that also proposes tokens from text, if the request does so."""
        request, tokenizer = self._request, self._loaded.tokenizer
        predicted = None
        if request.prediction is not None:
            begin, predicted = tokenizer.encode(""), tokenizer.encode(request.prediction)
            if predicted[: len(begin)] == begin:  # an answer has no begin token
                predicted = predicted[len(begin) :]
        return self._loaded.text.policy(
            self.history,
            self._policy,
            copies=request.copies,
            predicted=predicted,
            max_block_size=request.block_size,
        )

    def _emit(self, text: str, tokens: tuple[int, ...]) -> None:
        self._emit_segments(self._parser.feed(text), tokens)

    def _emit_segments(self, segments: list[Segment], tokens: tuple[int, ...]) -> None:
        """Put segments into the queue; the first chunk carries the round's tokens."""
        for segment in segments or ([Segment("", self._parser.kind)] if tokens else []):
            self._written.append(segment.text)
            thinking = segment.kind != "content"
            events = tuple(self._events.add([segment])) if segment.text else ()
            self._chunks.put(Chunk(segment.text, tokens, thinking, events))
            tokens = ()

    def _finish_reason(self, finished: bool) -> FinishReason:
        if self._text.ended:
            return "tool_calls" if self._events.tool_calls else "stop"
        return "length" if finished else "cancelled"

    def _stats(self, n_prefilled: int, prefill_s: float) -> Stats:
        counters, draft_s = self._counters, self._counters.draft_s
        n_rounds, drafted = counters.rounds, counters.drafted
        return Stats(
            rounds=n_rounds,
            drafted=drafted,
            accepted=counters.accepted,
            acceptance=counters.accepted / drafted if drafted else None,
            tokens_per_round=counters.committed / n_rounds if n_rounds else None,
            accepted_lengths=dict(sorted(counters.lengths.items())),
            accepted_by_position=counters.accepted_by_position(),
            drafted_by_position=counters.drafted_by_position(),
            prefill_s=prefill_s,
            decode_s=counters.decode_s,
            prefill_tps=rate(n_prefilled, prefill_s),
            decode_tps=rate(counters.committed, counters.decode_s),
            draft_s=draft_s,
            verify_s=None if draft_s is None else counters.decode_s - draft_s,
            host_reads=counters.host_reads,
            block_size=self._request.block_size,
            path="dflash" if self._request.block_size > 1 else "plain",
            disabled_at=counters.disabled_at,
            reason=counters.disabled_reason,
            peak_memory_bytes=mx.get_peak_memory(),
            blas=self._loaded.blas,
            sources=dict(counters.sources),
        )
