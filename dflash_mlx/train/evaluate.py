"""How good a draft is, in two ways that are not the same.

Sequentially: prompts that were never trained on are decoded greedily, through the loop that chat
uses, and rounds are counted. By anchors: places are drawn evenly over held-out answers. The
second flatters, for decoding takes many rounds where the draft is wrong and few where it is
right; a draft is chosen by the first.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from dflash_mlx.decode.greedy import greedy_rounds, stop_after
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.engine.stats import RoundCounters, acceptance_by_position
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.pair import Pair
from dflash_mlx.train.anchors import Blocks, draw_blocks
from dflash_mlx.train.samples import Sample


@dataclass(frozen=True)
class Prompt:
    """A held-out prompt in tokens, and its kind."""

    ids: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Sequential:
    """Greedy decoding of held-out prompts with blocks of `block` rows.

    `accepted_by_position[i]` is the share of rounds that accepted draft token i, of those that
    drafted it; `accepted_lengths[n]` counts the rounds that accepted n.
    """

    block: int
    tokens: int
    rounds: int
    tokens_per_round: float
    by_kind: Mapping[str, float]
    accepted_by_position: tuple[float, ...]
    accepted_lengths: Mapping[int, int]


@dataclass(frozen=True)
class ByAnchors:
    """Blocks at evenly drawn anchors of held-out answers; positions count as in `Sequential`."""

    anchors: int
    tokens_per_round: float
    accepted_by_position: tuple[float, ...]


def held_out_prompts(
    tokenizer: Tokenizer, thinking: bool | None, per_kind: int | None = None
) -> list[Prompt]:
    """Return the bundled prompts as this target's template renders them, kind by kind."""
    text = (resources.files("dflash_mlx.train") / "held_out.toml").read_text(encoding="utf-8")
    kinds: Mapping[str, list[str]] = tomllib.loads(text)["kinds"]

    def ids(prompt: str) -> tuple[int, ...]:
        if not tokenizer.has_template:
            return tuple(tokenizer.encode(prompt))
        return tuple(tokenizer.render([{"role": "user", "content": prompt}], thinking))

    return [Prompt(ids(text), kind) for kind, texts in kinds.items() for text in texts[:per_kind]]


def sequentially(
    pair: Pair,
    prompts: Sequence[Prompt],
    ends: frozenset[int],
    n_tokens: int,
    block: int,
    keep_on: Callable[[], bool] = lambda: True,
) -> Sequential | None:
    """Return what decoding `n_tokens` behind each prompt took; None when `keep_on` stopped it."""
    meters: dict[str, RoundCounters] = {}
    for prompt in prompts:
        if not keep_on():
            return None
        meter = meters.setdefault(prompt.kind, RoundCounters())
        rounds_of_answer = greedy_rounds(
            pair, prompt.ids, n_tokens, FixedBlock(block), stop_condition=stop_after(ends)
        )
        for done in rounds_of_answer:
            meter.add(done)
    tried: Counter[int] = sum((meter.tried for meter in meters.values()), Counter())
    hits: Counter[int] = sum((meter.hits for meter in meters.values()), Counter())
    lengths: Counter[int] = sum((meter.lengths for meter in meters.values()), Counter())
    rounds = sum(meter.rounds for meter in meters.values())
    tokens = sum(meter.committed for meter in meters.values())
    return Sequential(
        block=block,
        tokens=tokens,
        rounds=rounds,
        tokens_per_round=tokens / max(1, rounds),
        by_kind={kind: m.committed / max(1, m.rounds) for kind, m in meters.items()},
        accepted_by_position=acceptance_by_position(hits, tried),
        accepted_lengths=dict(sorted(lengths.items())),
    )


Predict = Callable[[Sample, Blocks], np.ndarray]
"""`(sample, N blocks of it) -> the draft's tokens [N, B - 1] behind the anchors`."""


def by_anchors(
    predict: Predict, samples: Sequence[Sample], block: int, per_sample: int, seed: int
) -> ByAnchors:
    """Return what a draft would get right at anchors drawn evenly over each sample's answer."""
    rng = np.random.default_rng(seed)
    tried, accepted = np.zeros(block - 1), np.zeros(block - 1)
    count = 0
    for sample in samples:
        blocks = draw_blocks(sample.tokens, sample.first, block, per_sample, rng)
        right = (predict(sample, blocks) == blocks.labels) & blocks.known
        accepted += np.cumprod(right, axis=1).sum(axis=0)
        tried += blocks.known.sum(axis=0)
        count += len(blocks.anchors)
    found = accepted / np.maximum(tried, 1)
    return ByAnchors(count, float(1 + accepted.sum() / max(1, count)), tuple(found.tolist()))
