"""The arms of a comparison: each takes prompt ids and gives tokens and seconds of decoding.

All hold the same weights in float32. Plain decoding is mlx-lm's own `generate_step` on the very
arrays of our target.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step

from dflash_mlx.accept import match_rule
from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode import Cut, Pair, Plan, decode
from dflash_mlx.prefill import prefill
from dflash_mlx.stats import Meter
from dflash_mlx.width.policy import BlockPolicy


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


def plain_run(pair: Pair, prompt: Sequence[int], n_tokens: int, ends: frozenset[int]) -> Run:
    """Decode with mlx-lm alone. Its clock starts where ours does: before the first token.

    mlx-lm reads the last prompt token with the first step, as we do.
    """
    marks: list[float] = []

    def read(done: int, total: int) -> None:
        if done == total - 1:
            marks.append(time.perf_counter())

    tokens = []
    steps = generate_step(
        mx.array(list(prompt)),
        pair.target.model,
        max_tokens=n_tokens,
        prompt_progress_callback=read,
    )
    for token, _ in steps:
        tokens.append(int(token))
        if token in ends:
            break
    return Run(tuple(tokens), time.perf_counter() - marks[-1], len(tokens))


def dflash_run(
    pair: Pair, prompt: Sequence[int], n_tokens: int, policy: BlockPolicy, ends: frozenset[int]
) -> Run:
    """Decode with our loop, the rows of each round as `policy` wants them."""

    def ending(tokens: Sequence[int]) -> Cut:
        for count, token in enumerate(tokens, 1):
            if token in ends:
                return Cut(count, True)
        return Cut(len(tokens), False)

    cache = pair.make_cache()
    state = prefill(pair, cache, prompt, 2048, lambda done, total: True)
    assert state is not None
    rule = match_rule(SamplingConfig(), 0)
    meter, tokens = Meter(), []
    began = time.perf_counter()
    for done, _ in decode(pair, cache, state, Plan(policy, rule, ending, n_tokens)):
        meter.add(done)
        tokens += done.tokens
    return Run(tuple(tokens), time.perf_counter() - began, meter.rounds)


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
        """Decode one prompt."""
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

    def _read(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended early")
        return json.loads(line)
