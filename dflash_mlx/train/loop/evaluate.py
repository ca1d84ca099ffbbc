"""Evaluates a draft: by greedy decoding of held-out prompts, and at anchors of held-out answers.

The second overestimates: decoding runs many rounds where the draft is wrong and few where it is
right. Drafts are chosen by the first. Must not know runs.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import mlx.core as mx
import numpy as np

from dflash_mlx.decode.greedy import greedy_rounds, stop_after
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.engine.stats import RoundCounters, acceptance_by_position
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.loss import TrainingExample, block_hidden
from dflash_mlx.train.model.forward import Blocks, draw_blocks, full_head


@dataclass(frozen=True)
class HeldOutPrompt:
    """A prompt in token ids that is never trained on, and its kind."""

    ids: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class DecodingEvaluation:
    """Greedy decoding of held-out prompts with blocks of `block_size`.

    `accepted_by_position[i]` is the share of the rounds with draft token i that accepted it.
    `accepted_lengths[n]` counts the rounds that accepted n draft tokens.
    """

    block_size: int
    tokens: int
    rounds: int
    tokens_per_round: float
    by_kind: Mapping[str, float]
    accepted_by_position: tuple[float, ...]
    accepted_lengths: Mapping[int, int]


@dataclass(frozen=True)
class AnchorEvaluation:
    """Blocks at uniform anchors of held-out answers; positions count as in decoding."""

    anchors: int
    tokens_per_round: float
    accepted_by_position: tuple[float, ...]


def held_out_prompts(
    tokenizer: Tokenizer, thinking: bool | None, per_kind: int | None = None
) -> list[HeldOutPrompt]:
    """Return the bundled prompts, rendered with the target's chat template, kind by kind."""
    text = (resources.files("dflash_mlx.train.loop") / "held_out.toml").read_text(encoding="utf-8")
    kinds: Mapping[str, list[str]] = tomllib.loads(text)["kinds"]

    def ids(prompt: str) -> tuple[int, ...]:
        if not tokenizer.has_template:
            return tuple(tokenizer.encode(prompt))
        return tuple(tokenizer.render([{"role": "user", "content": prompt}], thinking))

    return [
        HeldOutPrompt(ids(text), kind) for kind, texts in kinds.items() for text in texts[:per_kind]
    ]


def evaluate_decoding(
    pair: Pair,
    prompts: Sequence[HeldOutPrompt],
    eos_token_ids: frozenset[int],
    max_tokens: int,
    block_size: int,
    should_continue: Callable[[], bool] = lambda: True,
) -> DecodingEvaluation | None:
    """Decode up to `max_tokens` tokens after each prompt with the loop that `chat` uses.

    Returns None if `should_continue`, asked before each prompt, returned False.
    """
    by_kind: dict[str, RoundCounters] = {}
    for prompt in prompts:
        if not should_continue():
            return None
        counters = by_kind.setdefault(prompt.kind, RoundCounters())
        for output in greedy_rounds(
            pair,
            prompt.ids,
            max_tokens,
            FixedBlock(block_size),
            stop_condition=stop_after(eos_token_ids),
        ):
            counters.add(output)
    tried: Counter[int] = sum((counters.tried for counters in by_kind.values()), Counter())
    hits: Counter[int] = sum((counters.hits for counters in by_kind.values()), Counter())
    lengths: Counter[int] = sum((counters.lengths for counters in by_kind.values()), Counter())
    rounds = sum(counters.rounds for counters in by_kind.values())
    tokens = sum(counters.committed for counters in by_kind.values())
    return DecodingEvaluation(
        block_size=block_size,
        tokens=tokens,
        rounds=rounds,
        tokens_per_round=tokens / max(1, rounds),
        by_kind={kind: c.committed / max(1, c.rounds) for kind, c in by_kind.items()},
        accepted_by_position=acceptance_by_position(hits, tried),
        accepted_lengths=dict(sorted(lengths.items())),
    )


PredictBlocks = Callable[[Sample, Blocks], np.ndarray]
"""`(sample, N blocks of it) -> the draft's tokens [N, B - 1] after the anchors`."""


def block_predictor(draft: BoundDraft, features: FeatureStore, dtype: mx.Dtype) -> PredictBlocks:
    """Return a function that predicts the most likely token of each position, by the head alone."""
    head = full_head(draft)

    def predict(sample: Sample, blocks: Blocks) -> np.ndarray:
        example = TrainingExample(sample.tokens, sample.first, blocks, features(sample))
        logits = head.project(block_hidden(draft, example, dtype))
        return head.tokens(np.array(mx.argmax(logits, axis=-1)))

    return predict


def evaluate_anchors(
    predict: PredictBlocks, samples: Sequence[Sample], block_size: int, per_sample: int, seed: int
) -> AnchorEvaluation:
    """Return the acceptance at up to `per_sample` uniform anchors of each sample."""
    rng = np.random.default_rng(seed)
    tried, accepted = np.zeros(block_size - 1), np.zeros(block_size - 1)
    count = 0
    for sample in samples:
        blocks = draw_blocks(sample.tokens, sample.first, block_size, per_sample, rng)
        right = (predict(sample, blocks) == blocks.labels) & blocks.known
        accepted += np.cumprod(right, axis=1).sum(axis=0)
        tried += blocks.known.sum(axis=0)
        count += len(blocks.anchors)
    found = accepted / np.maximum(tried, 1)
    return AnchorEvaluation(count, float(1 + accepted.sum() / max(1, count)), tuple(found.tolist()))
