"""Throughput of draft tokens copied from the context, alone and mixed with the draft model.

    python benchmarks/text_proposals.py --prompts 40 --tokens 64

Four arms answer each prompt in turn: plain decoding, copies without a draft model, the draft
model, and both mixed. All texts are compared. Prompts are those of `copy_prompts.py`, or the
benchmark's ordinary ones with --ordinary.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict

from copy_prompts import COPY_PROMPTS

import dflash_mlx
from dflash_mlx.bench.suites import KINDS, bundled

ARMS = ("plain", "copy", "dflash", "mixed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ordinary", action="store_true")
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    prompts = dict(COPY_PROMPTS)
    if options.ordinary:
        prompts = {f"{p.kind} {n}": p.text for n, p in enumerate(bundled(KINDS, 7))}
    step = max(1, len(prompts) // options.prompts)
    chosen = dict(list(prompts.items())[::step][: options.prompts])
    with dflash_mlx.load(options.model) as engine:
        engine.worker.run(lambda: measure(engine.loaded, chosen, options.tokens))


def measure(loaded, prompts, n_tokens):
    """Answer all prompts with all arms and print the figures."""
    from dflash_mlx.controller.text_policy import TextStatistics

    statistics_of = {"copy": TextStatistics(), "mixed": TextStatistics()}
    speedups, rounds, accepted = defaultdict(list), defaultdict(list), defaultdict(list)
    for name, prompt in prompts.items():
        ids = loaded.tokenizer.render([{"role": "user", "content": prompt}], None)
        speeds, texts = {}, set()
        for arm in ARMS:
            finished, seconds = answer(loaded, arm, ids, n_tokens, statistics_of.get(arm))
            tokens = tuple(token for one in finished for token in one.tokens)
            texts.add(tokens)
            speeds[arm] = len(tokens) / seconds
            rounds[arm].append(len(tokens) / len(finished))
            copies = [one for one in finished if one.source == "copy"]
            if copies:
                drafted = sum(one.drafted for one in copies)
                accepted[arm].append(sum(one.accepted for one in copies) / drafted)
        for arm in ARMS:
            speedups[arm].append(speeds[arm] / speeds["plain"])
        figures = ", ".join(f"{arm} {speeds[arm] / speeds['plain']:.2f}" for arm in ARMS[1:])
        print(f"{name:20} {speeds['plain']:5.1f} tokens/s; {figures}; equal: {len(texts) == 1}")
    for arm in ARMS:
        share = f", copies accepted {statistics.mean(accepted[arm]):.0%}" if accepted[arm] else ""
        print(
            f"{arm:7} {statistics.mean(speedups[arm]):.2f}x plain (mean), "
            f"{statistics.mean(rounds[arm]):.2f} tokens per round{share}"
        )
    costs = statistics_of["mixed"].costs
    measured = {size: round(costs.seconds(size) / costs.seconds(1), 2) for size in (1, 2, 4, 8, 16)}
    print("cost of a block in plain steps:", json.dumps(measured))


def answer(loaded, arm, ids, n_tokens, text_statistics):
    """Return the rounds of one answer and the seconds of decoding."""
    from dflash_mlx.controller.text_policy import TextPolicy
    from dflash_mlx.decode.greedy import greedy_rounds, stop_after
    from dflash_mlx.decode.policy import FixedBlock
    from dflash_mlx.models.pair import Pair
    from dflash_mlx.proposals.context_copy import ContextCopy

    pair = loaded.pair if arm in ("dflash", "mixed") else Pair(loaded.pair.target)
    policy = loaded.tuning.policy() if pair.draft else FixedBlock(1)
    draft_policy, text = policy, None
    if text_statistics is not None:
        policy = text = TextPolicy([ContextCopy(ids)], policy, text_statistics)
    stop = stop_after(loaded.tokenizer.eos_token_ids)
    rounds = greedy_rounds(pair, ids, n_tokens, policy, stop_condition=stop, text=text)
    began = time.perf_counter()
    finished = list(rounds)
    seconds = time.perf_counter() - began
    if pair.draft:
        loaded.tuning.learn(draft_policy)
    return finished, seconds


if __name__ == "__main__":
    main()
