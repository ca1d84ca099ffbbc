"""Tokens per round of several builds of one draft, paired on the same text.

    python benchmarks/draft_precision.py DIALOGUES.json.gz FOLDER [FOLDER ...]

DIALOGUES holds [prompt ids, answer ids] pairs that the target wrote greedily. The target reads
each dialogue once; every draft then proposes along the answer as in decoding (a round accepts
what agrees and moves on by accepted + 1), so all drafts see the same features and the same text.
"""

import argparse
import gzip
import json
import time
from pathlib import Path

import dflash_mlx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dialogues", type=Path)
    parser.add_argument("drafts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=10_000, help="of answers, at least")
    parser.add_argument("--block", type=int, default=8)
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m", "none") as engine:
        engine.worker.run(lambda: compare(engine.loaded, options))


def compare(loaded, options):
    from dflash_mlx.loading.compute import compute_here
    from dflash_mlx.loading.draft import load_draft

    drafts = [load_draft(path, loaded.pair.target, compute_here()) for path in options.drafts]
    rounds, tokens = [0] * len(drafts), 0
    began = time.perf_counter()
    for prompt, answer in json.loads(gzip.decompress(options.dialogues.read_bytes())):
        ids = [*prompt, *answer]
        features = context_features(loaded, ids, drafts[0].target_layer_ids)
        tokens += len(answer)
        for index, draft in enumerate(drafts):
            rounds[index] += count_rounds(draft, features, ids, len(prompt), options.block)
        if tokens >= options.tokens:
            break
    print(f"{tokens} tokens, block {options.block}, {time.perf_counter() - began:.0f} s")
    base = tokens / rounds[0]
    for path, count in zip(options.drafts, rounds, strict=True):
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        rate = tokens / count
        print(
            f"{path.name:32} {size / 1e6:6.1f} MB  {rate:.4f} tokens/round  {rate / base - 1:+.2%}"
        )


def context_features(loaded, ids, wanted):
    """The target's features of a whole dialogue."""
    import mlx.core as mx

    target = loaded.pair.target
    features = target.forward(mx.array([ids]), target.make_caches(), wanted).features
    mx.eval(features)
    return features


def count_rounds(draft, features, ids, n_prompt, block):
    """Rounds that decoding the answer takes with this draft."""
    import numpy as np

    context, at, rounds = draft.make_context(), n_prompt - 1, 0
    while at < len(ids) - 1:
        draft.extend(features[:, context.length : at], context.length, context)
        n_rows = min(block, len(ids) - at)
        proposed = np.array(draft.propose(ids[at], n_rows, context).tokens[0])
        right = proposed == ids[at + 1 : at + n_rows]
        at += int(np.cumprod(right).sum()) + 1
        rounds += 1
    return rounds


if __name__ == "__main__":
    main()
