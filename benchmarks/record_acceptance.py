"""Record where the embedded draft is right, anchor by anchor, for the simulator.

    python benchmarks/record_acceptance.py recorded.toml --tokens 512 --prompts 2

The target writes greedily, many answers side by side, past its end tokens; then the draft proposes
a block behind every single token of every answer. What is written down: how many draft tokens in
a row were right there, and how sure the target was of its token.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from prompts import PROMPTS

import dflash_mlx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=2, help="of each kind")
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

    work = [
        (f"{kind}-{number}", loaded.tokenizer.render([{"role": "user", "content": text}], None))
        for kind, texts in PROMPTS.items()
        for number, text in enumerate(texts[: options.prompts], 1)
    ]
    limits = GenerationLimits(len(work), options.tokens)
    prompts = [ids for _, ids in work]
    model = loaded.pair.target.model
    answers = generate(model, prompts, (), limits, SamplingConfig(), mx.random.key(0))
    tables = []
    for (name, ids), answer in zip(work, answers, strict=True):
        right, sure = trace(loaded.pair, ids, answer)
        tables.append(
            f'[{name}]\nright = "{"".join(map(str, right))}"\n'
            f'confidence = "{"".join(f"{round(99 * value):02d}" for value in sure)}"\n'
        )
        print(f"{name}: {len(right)} tokens, {1 + sum(right) / len(right):.2f}", file=sys.stderr)
    return tables


def trace(pair, prompt, answer):
    """Return the right draft tokens behind every token of `answer`, and the target's confidence."""
    import mlx.core as mx

    text = [*prompt, *answer]
    cache = pair.make_cache()
    cache.append(len(text) - 1)
    walked = pair.target.forward(mx.array([text[:-1]]), cache.layers, pair.target_layer_ids)
    best = mx.sort(pair.target.logits(walked.hidden)[0, len(prompt) - 1 :], axis=-1)[:, -2:]
    sure = mx.sigmoid(best[:, 1] - best[:, 0]).tolist()
    features, context, right = walked.features, pair.make_cache().context, []
    done = 0
    for at in range(len(prompt), len(text)):
        pair.draft.extend(features[:, done:at], done, context)
        done = at
        block = pair.draft.propose(text[at], pair.draft.block_size, context)
        proposed, wanted = block.tokens[0].tolist(), text[at + 1 :]
        hits = [a == b for a, b in zip(proposed, wanted, strict=False)]
        right.append(hits.index(False) if False in hits else len(hits))
    return right, sure


if __name__ == "__main__":
    main()
