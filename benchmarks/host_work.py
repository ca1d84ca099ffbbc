"""How much time per round is host work, by part, and how much of it delays the round?

    python benchmarks/host_work.py --block-size 3 --tokens 128

The embedded pair in float32 on OpenBLAS, greedy, with a fixed block size. Every part is timed on
the worker thread; the rest of a round is spent waiting for the two forwards. The graph of the
verification is built while the draft runs, so only the other parts delay a round.
"""

import argparse
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from prompts import prompt_ids

import dflash_mlx

OVERLAPPED = "build verify"
"""The part that runs while the device runs the draft."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--block-size", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        engine.worker.run(lambda: measure(engine.loaded, options))


class Timed:
    """A wrapper that times some calls of an object; `names` maps each to its part of the round."""

    def __init__(self, wrapped, clock, names):
        self._wrapped, self._clock, self._names = wrapped, clock, names

    def __getattr__(self, name):
        found = getattr(self._wrapped, name)
        return (
            partial(self._clock.timed, self._names[name], found) if name in self._names else found
        )


class Clock:
    """Seconds of the current round, by part."""

    def __init__(self):
        self.spent = defaultdict(float)

    def timed(self, part, call, *args):
        """Return what `call` returns, and add its seconds to `part`."""
        began = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.spent[part] += time.perf_counter() - began


def measure(loaded, options):
    from dflash_mlx.config import SamplingConfig
    from dflash_mlx.decode.accept import match_rule
    from dflash_mlx.decode.greedy import greedy_rounds
    from dflash_mlx.decode.policy import FixedBlock
    from dflash_mlx.engine.answer.text import AnswerText
    from dflash_mlx.models.pair import Pair

    clock = Clock()
    pair = Pair(
        Timed(loaded.pair.target, clock, {"forward": OVERLAPPED, "logits": OVERLAPPED}),
        Timed(loaded.pair.draft, clock, {"propose": "build draft", "extend": "build context"}),
    )
    names = {"next_block_size": "policy", "observe": "policy"}
    policy = Timed(FixedBlock(options.block_size), clock, names)
    rule = partial(clock.timed, "build accept", match_rule(SamplingConfig(), 0))
    text = AnswerText(loaded.tokenizer.decode, (), ())
    stop_condition = partial(clock.timed, "text", text.cut)
    rounds = defaultdict(list)
    for _, ids in prompt_ids(loaded):
        for done in greedy_rounds(
            pair,
            ids,
            options.tokens,
            policy,
            accept_rule=rule,
            stop_condition=stop_condition,
        ):
            if done.drafted:
                rounds["round"].append(done.seconds)
                for part, seconds in clock.spent.items():
                    rounds[part].append(seconds)
            clock.spent.clear()
    report(rounds, options)


def report(rounds, options):
    """Print the median milliseconds of every part, and its share of the median round."""
    whole = median(rounds.pop("round"))
    print(f"block {options.block_size}: {1000 * whole:.1f} ms per round (median)")
    overlapped = median(rounds[OVERLAPPED])
    total = 0.0
    for part, seconds in sorted(rounds.items(), key=lambda item: -median(item[1])):
        total += median(seconds)
        print_part(part, median(seconds), whole)
    print_part("all host work", total, whole)
    print_part("delays the round", total - overlapped, whole)


def print_part(name, seconds, whole):
    print(f"{name:18} {1000 * seconds:7.3f} ms {seconds / whole:6.2%}")


if __name__ == "__main__":
    main()
