"""Measures what quantizing a draft costs: acceptance and tokens per round before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from dflash_mlx.convert.plan.draft_layout import draft_module
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.sample_text import PROMPTS
from dflash_mlx.convert.tensors import Rows, read_all
from dflash_mlx.decode.greedy import greedy_rounds
from dflash_mlx.loading.compute import Compute, compute_here, settle_weights
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import LoadedTarget, load_target
from dflash_mlx.loading.weights import fill
from dflash_mlx.models.draft.build import bind
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.model_types import is_supported
from dflash_mlx.system.foreign import quoted, reading

_N_TOKENS = 32
"""Tokens per prompt. The check then takes minutes on a CPU (501 s in docs/convert.md)."""


@dataclass(frozen=True)
class DraftComparison:
    """Greedy decoding of the sample prompts with the source's draft and with the result.

    acceptance is accepted / drafted tokens; tokens_per_round is committed tokens / rounds.
    """

    acceptance_before: float
    acceptance_after: float
    tokens_per_round_before: float
    tokens_per_round_after: float
    n_tokens: int


def compare_drafts(
    job: ConversionJob, jobs: Sequence[ConversionJob], folder: Path, watch: ProgressCallback
) -> tuple[DraftComparison | None, str | None]:
    """Return the comparison of a written draft with its source and None, or None and the reason.

    Target and draft are loaded completely, as for generation.
    """
    targets = [other for other in jobs if other.draft is None]
    if not targets:
        return None, "its target is not part of this conversion; convert both with --draft"
    if not is_supported(dict(targets[0].config)):
        family = quoted(targets[0].config.get("model_type"))
        return None, f"the runtime does not support targets of family {family}"
    compute = compute_here()
    with reading(
        job.source.name,
        "the pair that the configurations describe",
        "check both config.json, or skip the comparison with --no-verify",
    ):
        target = load_target(folder / targets[0].folder, compute)
        before = _measure(target, _from_rows(job, target, compute), "before", watch)
        mx.clear_cache()
        draft = load_draft(folder / job.folder, target.target, compute)
        after = _measure(target, draft, "after", watch)
    return DraftComparison(before[0], after[0], before[1], after[1], len(PROMPTS) * _N_TOKENS), None


def _from_rows(job: ConversionJob, target: LoadedTarget, compute: Compute) -> BoundDraft:
    """Return the draft with the values of its source."""
    assert job.draft is not None
    values: Mapping[str, Rows] = job.values
    model = draft_module(job.draft, values)
    fill(model, {name: read_all(rows) for name, rows in values.items()}, job.source.name)
    settle_weights(model, compute)
    return bind(model, target.target)


def _measure(
    target: LoadedTarget, draft: BoundDraft, when: str, watch: ProgressCallback
) -> tuple[float, float]:
    """Return acceptance and tokens per round over the sample prompts."""
    accepted = drafted = committed = rounds = 0
    for number, prompt in enumerate(PROMPTS, 1):
        pair = Pair(target.target, draft)
        for done in greedy_rounds(pair, _prompt_ids(target, prompt), _N_TOKENS):
            accepted, drafted = accepted + done.accepted, drafted + done.drafted
            committed, rounds = committed + len(done.tokens), rounds + 1
        watch(ConversionProgress("check", number, len(PROMPTS), f"decoding {when}"))
    return accepted / max(1, drafted), committed / max(1, rounds)


def _prompt_ids(target: LoadedTarget, prompt: str) -> list[int]:
    tokenizer = target.tokenizer
    if not tokenizer.has_template:
        return tokenizer.encode(prompt)
    thinking = False if tokenizer.has_thinking else None
    return tokenizer.render([{"role": "user", "content": prompt}], thinking)
