"""What the host does in a round, piece by piece, and how much of a round it is.

    python benchmarks/host_work.py --block 3 --tokens 128

The embedded pair in float32 on OpenBLAS, greedy, at a fixed block. Every piece is timed on the
thread that decodes; what is left of a round is spent waiting for the two forward passes. The graph
of the verification is built while the draft runs, so it delays a round only by what it takes
longer than that.
"""

import argparse
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from prompts import PROMPTS

import dflash_mlx

BESIDE = "build verify"
"""The piece that is done while the draft runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--block", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        engine.worker.run(lambda: measure(engine.loaded, options))


class Timed:
    """An object whose named calls are timed under other names; all else is its own."""

    def __init__(self, wrapped, clock, names):
        self._wrapped, self._clock, self._names = wrapped, clock, names

    def __getattr__(self, name):
        found = getattr(self._wrapped, name)
        return (
            partial(self._clock.timed, self._names[name], found) if name in self._names else found
        )


class Clock:
    """Seconds by piece of work in the round under way."""

    def __init__(self):
        self.spent = defaultdict(float)

    def timed(self, piece, call, *args):
        """Return what `call` returns, its seconds counted under `piece`."""
        began = time.perf_counter()
        try:
            return call(*args)
        finally:
            self.spent[piece] += time.perf_counter() - began


def measure(loaded, options):
    from dflash_mlx.config import SamplingConfig
    from dflash_mlx.decode.accept import match_rule
    from dflash_mlx.decode.greedy import greedy_rounds
    from dflash_mlx.decode.policy import FixedBlock
    from dflash_mlx.engine.answer_text import AnswerText
    from dflash_mlx.models.pair import Pair

    clock = Clock()
    pair = Pair(
        Timed(loaded.pair.target, clock, {"forward": BESIDE, "logits": BESIDE}),
        Timed(loaded.pair.draft, clock, {"propose": "build draft", "extend": "build context"}),
    )
    names = {"next_block_size": "policy", "observe": "policy"}
    policy = Timed(FixedBlock(options.block), clock, names)
    rule = partial(clock.timed, "build accept", match_rule(SamplingConfig(), 0))
    text = AnswerText(loaded.tokenizer.decode, (), ())
    stop_condition = partial(clock.timed, "text", text.cut)
    rounds = defaultdict(list)
    for texts in PROMPTS.values():
        ids = loaded.tokenizer.render([{"role": "user", "content": texts[0]}], None)
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
                for piece, seconds in clock.spent.items():
                    rounds[piece].append(seconds)
            clock.spent.clear()
    report(rounds, options)


def report(rounds, options):
    """Print the median milliseconds of every piece, and its share of the median round."""
    whole = median(rounds.pop("round"))
    print(f"block {options.block}: {1000 * whole:.1f} ms a round (median)")
    beside = median(rounds[BESIDE])
    total = 0.0
    for piece, seconds in sorted(rounds.items(), key=lambda item: -median(item[1])):
        total += median(seconds)
        print(f"{piece:18} {1000 * median(seconds):7.3f} ms {median(seconds) / whole:6.2%}")
    print(f"{'all':18} {1000 * total:7.3f} ms {total / whole:6.2%}")
    alone = total - beside
    print(f"{'not beside the draft':18} {1000 * alone:5.3f} ms {alone / whole:6.2%}")


if __name__ == "__main__":
    main()
