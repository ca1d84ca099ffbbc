"""The arms of a comparison: each takes prompt ids and gives tokens and seconds of decoding.

All hold the same weights in float32. Plain decoding is mlx-lm's own `generate_step` on the very
arrays of our target.
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
    """One answer: decoding only, from the end of the prefill to the last token.

    `untimed` tokens at its beginning came before the clock was started.
    """

    tokens: tuple[int, ...]
    seconds: float
    rounds: int
    untimed: int = 0

    @property
    def timed_tokens(self) -> int:
        """Tokens that `seconds` were spent on."""
        return len(self.tokens) - self.untimed


class Answer:
    """An answer under way. It is written on when asked, and its clock runs only then.

    `rounds` gives the tokens of each round, the prompt read already; `finished` is called once
    the answer is taken. Arms that take turns within an answer meet the same machine: here plain
    decoding of one text differs by 10% between two minutes, and by less between two seconds.
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
        """Decode to `until` tokens or the end; no work is left behind for the next to wait for."""
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
        """Return what was written so far."""
        self._finished()
        return Run(tuple(self._tokens), self._seconds, self._n_rounds)


def plain_rounds(
    pair: Pair, prompt: Sequence[int], n_tokens: int, ends: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """Read a prompt and return the steps of mlx-lm's own loop behind it.

    mlx-lm reads the last prompt token with the first step, as we do.
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
    """Decode with our loop, the rows of each round as `policy` wants them."""
    answer = Answer(dflash_rounds(pair, prompt, n_tokens, policy, ends))
    answer.write(n_tokens)
    return answer.run()


class Peer:
    """Another package in an environment of its own, asked one prompt at a time over a pipe.

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

    def run(self, prompt: Sequence[int], n_tokens: int, block: int) -> Run:
        """Decode one prompt; a block of 0 is the package's own default."""
        assert self._process.stdin is not None
        request = {"prompt": list(prompt), "max_tokens": n_tokens, "block": block}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return Run(tuple(answer["tokens"]), answer["seconds"], answer["rounds"], untimed=1)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, prompt: Sequence[int], n_tokens: int, block: int) -> "PeerAnswer":
        """Return an answer that is still to be asked for."""
        return PeerAnswer(lambda: self.run(prompt, n_tokens, block))

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended early")
        return json.loads(line)


class PeerAnswer:
    """An answer of another package: written whole, whenever it is asked for."""

    def __init__(self, ask: Callable[[], Run]) -> None:
        self._ask = ask
        self._run: Run | None = None

    def write(self, until: int) -> None:
        """Decode all of it."""
        self._run = self._run or self._ask()

    def run(self) -> Run:
        """Return what was written."""
        assert self._run is not None
        return self._run
