"""The arms of the comparisons: plain mlx-lm, our decode loop, and other packages.

All arms use the same weights in float32; plain decoding runs `generate_step` on our arrays.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.decode.greedy import greedy_rounds, stop_after
from dflash_mlx.decode.policy import BlockPolicy
from dflash_mlx.models.pair import Pair


@dataclass(frozen=True)
class Run:
    """One answer: `seconds` are from the end of prefill to the last token.

    The first `untimed` tokens came before the clock started.
    """

    tokens: tuple[int, ...]
    seconds: float
    rounds: int
    untimed: int = 0

    @property
    def timed_tokens(self) -> int:
        """Tokens that were decoded in `seconds`."""
        return len(self.tokens) - self.untimed


class Answer:
    """An unfinished answer. Its clock runs only while `write` decodes.

    `rounds` yields the tokens of each round after prefill; `run` calls `finished`. Arms that take
    turns within an answer run on the same machine state: plain decoding of one text differs by
    10% between two minutes, and by less between two seconds (docs/log.md).
    """

    def __init__(
        self, rounds: Iterator[tuple[int, ...]], finished: Callable[[], None] = lambda: None
    ) -> None:
        self._rounds = rounds
        self._finished = finished
        self._tokens: list[int] = []
        self._n_rounds = 0
        self._seconds = 0.0

    def write(self, until: int) -> None:
        """Decode up to `until` tokens in all, and wait for the device: the next arm must not."""
        began = time.perf_counter()
        while len(self._tokens) < until:
            tokens = next(self._rounds, None)
            if tokens is None:
                break
            self._tokens += tokens
            self._n_rounds += 1
        mx.synchronize()
        mx.synchronize(generation_stream)
        self._seconds += time.perf_counter() - began

    def run(self) -> Run:
        """Return the answer so far."""
        self._finished()
        return Run(tuple(self._tokens), self._seconds, self._n_rounds)


def plain_rounds(
    pair: Pair, prompt: Sequence[int], n_tokens: int, ends: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """Prefill a prompt and return the steps of mlx-lm's loop after it.

    The last prompt token is part of the first step, as in our loop.
    """
    model = pair.target.model
    caches = make_prompt_cache(model)
    if len(prompt) > 1:
        model(mx.array([list(prompt[:-1])]), cache=caches)
        mx.eval([cache.state for cache in caches])
    steps = generate_step(
        mx.array(list(prompt[-1:])), model, max_tokens=n_tokens, prompt_cache=caches
    )

    def rounds() -> Iterator[tuple[int, ...]]:
        for token, _ in steps:
            yield (int(token),)
            if token in ends:
                return

    return rounds()


def dflash_rounds(
    pair: Pair, prompt: Sequence[int], n_tokens: int, policy: BlockPolicy, ends: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """Prefill a prompt and return the tokens of each round after it."""
    stop_condition = stop_after(ends)
    rounds = greedy_rounds(pair, prompt, n_tokens, policy, stop_condition=stop_condition)
    return (finished.tokens for finished in rounds)


def plain_run(pair: Pair, prompt: Sequence[int], n_tokens: int, ends: frozenset[int]) -> Run:
    """Decode with mlx-lm alone."""
    answer = Answer(plain_rounds(pair, prompt, n_tokens, ends))
    answer.write(n_tokens)
    return answer.run()


def dflash_run(
    pair: Pair, prompt: Sequence[int], n_tokens: int, policy: BlockPolicy, ends: frozenset[int]
) -> Run:
    """Decode with our loop and the block sizes of `policy`."""
    answer = Answer(dflash_rounds(pair, prompt, n_tokens, policy, ends))
    answer.write(n_tokens)
    return answer.run()


class Peer:
    """Another package in its own environment, driven over a pipe.

    The script prints one JSON line when it is ready and one for each request.
    """

    def __init__(
        self, python: Path, script: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._read()

    def run(self, prompt: Sequence[int], n_tokens: int, block_size: int) -> Run:
        """Decode one prompt; block size 0 is the default of the package."""
        assert self._process.stdin is not None
        request = {"prompt": list(prompt), "max_tokens": n_tokens, "block": block_size}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return Run(tuple(answer["tokens"]), answer["seconds"], answer["rounds"], untimed=1)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, prompt: Sequence[int], n_tokens: int, block_size: int) -> "PeerAnswer":
        """Return an answer that is requested when it is written."""
        return PeerAnswer(lambda: self.run(prompt, n_tokens, block_size))

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended early")
        return json.loads(line)


class PeerAnswer:
    """An answer of another package. It is decoded as a whole."""

    def __init__(self, request: Callable[[], Run]) -> None:
        self._request = request
        self._run: Run | None = None

    def write(self, until: int) -> None:
        """Decode the whole answer."""
        self._run = self._run or self._request()

    def run(self) -> Run:
        """Return the answer."""
        assert self._run is not None
        return self._run
