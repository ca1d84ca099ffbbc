"""How many tokens per round do several builds of one draft give on the same text?

    python benchmarks/draft_precision.py DIALOGUES.json.gz FOLDER [FOLDER ...]

DIALOGUES contains [prompt ids, answer ids] pairs that the target decoded greedily. The target reads
each dialogue once, and every draft then drafts along the answer as in decoding, so all drafts get
the same hidden states and the same text.
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
    parser.add_argument("--tokens", type=int, default=10_000, help="least answer tokens")
    parser.add_argument("--block-size", type=int, default=8)
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
            rounds[index] += count_rounds(draft, features, ids, len(prompt), options.block_size)
        if tokens >= options.tokens:
            break
    print(f"{tokens} tokens, block size {options.block_size}, {time.perf_counter() - began:.0f} s")
    base = tokens / rounds[0]
    for path, count in zip(options.drafts, rounds, strict=True):
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        rate = tokens / count
        print(
            f"{path.name:32} {size / 1e6:6.1f} MB  {rate:.4f} tokens/round  {rate / base - 1:+.2%}"
        )


def context_features(loaded, ids, wanted):
    """Return the target's hidden states of a whole dialogue."""
    import mlx.core as mx

    target = loaded.pair.target
    features = target.forward(mx.array([ids]), target.make_caches(), wanted).features
    mx.eval(features)
    return features


def count_rounds(draft, features, ids, n_prompt, block):
    """Return the rounds that this draft needs to decode the answer."""
    import numpy as np

    context, at, rounds = draft.make_context(), n_prompt - 1, 0
    while at < len(ids) - 1:
        draft.extend(features[:, context.length : at], context.length, context)
        n_tokens = min(block, len(ids) - at)
        proposed = np.array(draft.propose(ids[at], n_tokens, context).tokens[0])
        right = proposed == ids[at + 1 : at + n_tokens]
        at += int(np.cumprod(right).sum()) + 1
        rounds += 1
    return rounds


if __name__ == "__main__":
    main()
