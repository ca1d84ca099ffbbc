"""Which proposal of a v1 draft gives more tokens per round when sampling: argmax or a sample?

    python benchmarks/sampled_proposals.py [--temperature 1.0]

Both sample exactly from the target. The argmax is accepted if it equals the target's sample. A
sample of the draft is accepted with probability min(1, p/q) and the residual rule; a v1 draft
samples each position independently. Prompts, seeds and block size are the same.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from prompts import prompt_ids

import dflash_mlx
from dflash_mlx.bench.suites import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each kind")
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        engine.worker.run(lambda: compare(engine.loaded, options))


def compare(loaded, options):
    from dflash_mlx.decode.accept import match_rule, request_rule
    from dflash_mlx.models.pair import Pair

    sampling = dflash_mlx.SamplingConfig(temperature=options.temperature, top_p=options.top_p)
    pair = loaded.pair
    sampled = Pair(pair.target, sampling_draft(pair.draft, sampling))
    totals = {"argmax": [0, 0], "sample, residual": [0, 0]}
    for seed, (_, ids) in enumerate(prompt_ids(loaded, KINDS, options.prompts), 1):
        arms = (
            ("argmax", pair, match_rule(sampling, seed)),
            ("sample, residual", sampled, request_rule(sampling, seed)),
        )
        for name, arm, rule in arms:
            rounds, tokens = count(arm, ids, rule, options.tokens)
            totals[name][0] += rounds
            totals[name][1] += tokens
    print(
        f"temperature {options.temperature}, top-p {options.top_p}, "
        f"block size {pair.draft.block_size}"
    )
    for name, (rounds, tokens) in totals.items():
        print(f"{name:16} {tokens / rounds:.3f} tokens per round ({tokens} tokens)")


def sampling_draft(draft, sampling):
    """Return the draft, proposing a sample of its filtered softmax at every position."""
    import mlx.core as mx

    from dflash_mlx.decode.sampling import filtered, log_probs
    from dflash_mlx.models.protocols import Block, Candidates
    from dflash_mlx.models.random_keys import draw

    def target_ids(tokens):
        return tokens + draft.model.d2t[tokens] if "d2t" in draft.model else tokens

    class SamplingDraft:
        target_layer_ids, block_size = draft.target_layer_ids, draft.block_size
        make_context, extend = draft.make_context, draft.extend

        def propose(self, anchor, n_rows, context):
            logits = draft.logits(draft.hidden(anchor, n_rows, context))[0]
            scores = filtered(log_probs(logits), sampling)
            drawn = draw(scores, seed=977, position=context.length + 1)
            tokens, every = target_ids(drawn), target_ids(mx.arange(scores.shape[1]))
            ids = mx.broadcast_to(every, scores.shape)
            candidates = Candidates(ids, mx.softmax(scores, axis=-1))
            return Block(tokens[None], mx.array(True), candidates)

    return SamplingDraft()


def count(pair, ids, rule, n_tokens):
    from dflash_mlx.decode.greedy import greedy_rounds

    rounds = list(greedy_rounds(pair, ids, n_tokens, accept_rule=rule))
    return len(rounds), sum(len(done.tokens) for done in rounds)


if __name__ == "__main__":
    main()
