"""Which proposal suits a v1 draft above temperature 0: its argmax, or a draw from its softmax?

    python benchmarks/sampled_proposals.py [--temperature 1.0]

Both are exact. The argmax is proposed as certain and accepted where the target's own draw equals
it; the draw is accepted by min(1, p/q) with the residual rule, each position drawn independently
as a v1 draft must. Same prompts, seeds and block; tokens per round decide.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from prompts import PROMPTS

import dflash_mlx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=2, help="of each kind")
    options = parser.parse_args()
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        engine.worker.run(lambda: compare(engine.loaded, options))


def compare(loaded, options):
    from dflash_mlx.decode.accept import match_rule, request_rule
    from dflash_mlx.models.pair import Pair

    sampling = dflash_mlx.SamplingConfig(temperature=options.temperature, top_p=options.top_p)
    pair = loaded.pair
    drawn = Pair(pair.target, drawing_draft(pair.draft, sampling))
    totals = {"argmax, certain": [0, 0], "draw, residual": [0, 0]}
    seed = 0
    for texts in PROMPTS.values():
        for text in texts[: options.prompts]:
            seed += 1
            ids = loaded.tokenizer.render([{"role": "user", "content": text}], None)
            arms = (
                ("argmax, certain", pair, match_rule(sampling, seed)),
                ("draw, residual", drawn, request_rule(sampling, seed)),
            )
            for name, arm, rule in arms:
                rounds, tokens = count(arm, ids, rule, options.tokens)
                totals[name][0] += rounds
                totals[name][1] += tokens
    print(
        f"temperature {options.temperature}, top-p {options.top_p}, block {pair.draft.block_size}"
    )
    for name, (rounds, tokens) in totals.items():
        print(f"{name:16} {tokens / rounds:.3f} tokens per round ({tokens} tokens)")


def drawing_draft(draft, sampling):
    """The draft, proposing a draw from its filtered softmax at every position."""
    import mlx.core as mx

    from dflash_mlx.decode.sampling import filtered, log_probs
    from dflash_mlx.models.protocols import Block, Candidates
    from dflash_mlx.models.random_keys import draw

    def target_ids(tokens):
        return tokens + draft.model.d2t[tokens] if "d2t" in draft.model else tokens

    class Drawing:
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

    return Drawing()


def count(pair, ids, rule, n_tokens):
    from dflash_mlx.decode.greedy import greedy_rounds

    rounds = list(greedy_rounds(pair, ids, n_tokens, accept_rule=rule))
    return len(rounds), sum(len(done.tokens) for done in rounds)


if __name__ == "__main__":
    main()
