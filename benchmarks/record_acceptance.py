"""Records after every token how many tokens of the embedded draft are accepted, for the simulator.

    python benchmarks/record_acceptance.py recorded.toml --tokens 512 --prompts 2

The target decodes greedily, many answers in one batch, beyond end-of-sequence tokens; then the
draft proposes a block after every token of every answer. The file has the number of accepted
draft tokens, and the target's confidence in its own token.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from prompts import prompt_ids

import dflash_mlx
from dflash_mlx.bench.suites import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each kind")
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        tables = engine.worker.run(lambda: record(engine.loaded, options))
    options.file.write_text("\n".join(tables))


def record(loaded, options):
    """Return one table of TOML for each answer."""
    import mlx.core as mx

    from dflash_mlx.config import SamplingConfig
    from dflash_mlx.train.data.generation import GenerationLimits, generate

    work, counts = [], Counter()
    for kind, ids in prompt_ids(loaded, KINDS, options.prompts):
        counts[kind] += 1
        work.append((f"{kind}-{counts[kind]}", ids))
    limits = GenerationLimits(len(work), options.tokens)
    prompts = [ids for _, ids in work]
    model = loaded.pair.target.model
    answers = generate(model, prompts, (), limits, SamplingConfig(), mx.random.key(0))
    tables = []
    for (name, ids), answer in zip(work, answers, strict=True):
        accepted, confidence = trace(loaded.pair, ids, answer)
        tables.append(
            f'[{name}]\naccepted = "{"".join(map(str, accepted))}"\n'
            f'confidence = "{"".join(f"{round(99 * value):02d}" for value in confidence)}"\n'
        )
        mean = 1 + sum(accepted) / len(accepted)
        print(f"{name}: {len(accepted)} tokens, {mean:.2f} per round", file=sys.stderr)
    return tables


def trace(pair, prompt, answer):
    """Return the accepted draft tokens after every token of `answer`, and the confidences."""
    import mlx.core as mx

    text = [*prompt, *answer]
    cache = pair.make_cache()
    cache.append(len(text) - 1)
    output = pair.target.forward(mx.array([text[:-1]]), cache.layers, pair.target_layer_ids)
    best = mx.sort(pair.target.logits(output.hidden)[0, len(prompt) - 1 :], axis=-1)[:, -2:]
    confidence = mx.sigmoid(best[:, 1] - best[:, 0]).tolist()
    features, context, accepted = output.features, pair.make_cache().context, []
    done = 0
    for at in range(len(prompt), len(text)):
        pair.draft.extend(features[:, done:at], done, context)
        done = at
        block = pair.draft.propose(text[at], pair.draft.block_size, context)
        proposed, wanted = block.tokens[0].tolist(), text[at + 1 :]
        equal = [a == b for a, b in zip(proposed, wanted, strict=False)]
        accepted.append(equal.index(False) if False in equal else len(equal))
    return accepted, confidence


if __name__ == "__main__":
    main()
