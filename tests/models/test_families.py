"""Every family of targets through the decode loop: text and caches equal mlx-lm's own.

A family is a name in `tests/tiny_configs.py`. Where mlx-lm sums one row and several rows in the
same order, text and caches are equal bit for bit. Latent attention has another form for one row,
and a wrapped window another order: there caches agree within 1e-4, and texts may differ only where
the two best logits are closer than that.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode.accept import match_rule
from dflash_mlx.decode.greedy import never_stop
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import StopDecision
from dflash_mlx.decode.sampling import choose, filtered, log_probs
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import Draft
from dflash_mlx.models.targets.decoder import DecoderTarget
from tests.models.plain_rows import assert_same_rows
from tests.tiny import (
    PROMPT,
    BlockSizes,
    ScriptedDraft,
    answer,
    oracle_draft,
    plain,
    random_draft,
    read_prompt,
    rounds,
    tiny_target,
    zero_draft,
)
from tests.tiny_configs import CONFIGS, PACKAGINGS

LENGTH = 200
OTHER_ORDER = {
    "llama_windowed",
    "gpt_oss",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "gemma4_small",
    "gemma4_text",
    "muse_glimmer",
    "laguna",
    "deepseek_v3",
    "kimi_k25",
    "glm_moe_dsa",
    "longcat_flash",
}
"""Families in which mlx-lm sums one row in another order than several rows."""

NEAR_TIE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def uncompiled() -> Iterator[None]:
    """MLX compiles each new fused graph with the system's compiler, which takes seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


class Known(NamedTuple):
    """A tiny target with mlx-lm's text after `PROMPT` and its caches after that text."""

    family: str
    target: DecoderTarget
    text: list[int]  # prompt and answer
    caches: list[Any]

    @property
    def written(self) -> list[int]:
        return self.text[len(PROMPT) :]

    @property
    def tolerance(self) -> float:
        return NEAR_TIE if self.family in OTHER_ORDER else 0.0


@cache
def know(family: str) -> Known:
    target = tiny_target(family)
    caches = make_prompt_cache(target.model)
    written = plain(target.model, PROMPT, LENGTH, prompt_cache=caches)
    return Known(family, target, [*PROMPT, *written], caches)


@pytest.fixture(params=[name for name in CONFIGS if name not in PACKAGINGS])
def known(request: pytest.FixtureRequest) -> Known:
    return know(request.param)


def assert_same_text(known: Known, got: list[int], want: list[int]) -> None:
    """Compare tokens; the first difference may be a near tie where sums differ in order."""
    differ = [at for at, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]
    if not differ:
        return
    before = [*PROMPT, *want[: differ[0]]]
    logits = known.target.model(mx.array([before]))[0, -1]
    second, first = np.sort(np.array(logits))[-2:]
    gap = float(first - second)
    print(f"{known.family} differs at token {differ[0]}, top-two gap {gap:.1e}")  # noqa: T201
    assert known.tolerance and gap < NEAR_TIE, f"differs at token {differ[0]}, gap {gap:.1e}"


def assert_decodes(known: Known, draft: Draft, policy: BlockSizes | None = None) -> list[int]:
    """Decode one token more than mlx-lm did, so that both caches hold the same rows."""
    pair = Pair(known.target, draft)
    cache, state = read_prompt(pair)
    got, accepted = [], []
    for done, _ in rounds(pair, cache, state, LENGTH + 1, policy):
        got += done.tokens
        accepted.append(done.accepted)
    assert_same_text(known, got[:LENGTH], known.written)
    if got[:LENGTH] == known.written:
        assert_same_rows(cache.layers, known.caches, known.tolerance)
    return accepted


def test_every_draft_token_accepted(known: Known) -> None:
    """Full blocks that wrap a window corrupted its rows."""
    accepted = assert_decodes(known, oracle_draft(known.text))
    assert set(accepted[:-2]) == {7}


def test_no_draft_token_accepted(known: Known) -> None:
    """Every round rolls back all rows but one."""
    # not a fixed block, which would stop drafting after a while
    accepted = assert_decodes(known, zero_draft(known.text), BlockSizes(4))
    assert accepted == [0] * (LENGTH + 1)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_length_accepted_among_plain_steps(family: str) -> None:
    """A rotating cache was wrong after a rollback followed by a single row."""
    known = know(family)
    draft = ScriptedDraft(known.text, list(range(8)) * 40)
    accepted = assert_decodes(known, draft, BlockSizes(8, 1, 5, 1, 1, 3))
    assert set(accepted) >= {0, 1, 2, 3, 4}


def test_a_random_draft_changes_nothing(known: Known) -> None:
    """A real draft reads hidden states and shares embedding and head; text must not change."""
    got = answer(Pair(known.target, random_draft(known.target)), 24)
    assert_same_text(known, got, known.written[:24])


@pytest.mark.parametrize("n_rows", [1, 7, 64])
def test_prompts_in_chunks(known: Known, n_rows: int) -> None:
    """A long prompt is read in chunks, which wrap windows and carry states over."""
    prompt = known.text[:75]
    draft = ScriptedDraft(known.text, [3, 0, 7, 1])
    got = answer(Pair(known.target, draft), 24, prompt, prefill_step_size=n_rows)
    want = known.text[75:99]
    if got != want:  # another chunk grid is another order of sums in some families
        want = plain(known.target.model, prompt, 24, n_rows)
    assert_same_text(known, got, want)


def test_an_interrupted_round_leaves_the_caches_as_before_it(known: Known) -> None:
    """A cancelled request left rows that the next request continued from."""
    draft = ScriptedDraft(known.text, [2, 5, 0, 7])
    pair = Pair(known.target, draft)
    cache, state = read_prompt(pair)
    got: list[int] = []
    for fails_at in (1, 3, 2, 4):
        n_rounds = 0

        def ending(tokens: list[int]) -> StopDecision:
            nonlocal n_rounds
            n_rounds += 1
            if n_rounds == fails_at:  # noqa: B023
                raise KeyboardInterrupt
            return never_stop(tokens)

        with pytest.raises(KeyboardInterrupt):
            for done, after in rounds(pair, cache, state, LENGTH + 1, stop_condition=ending):
                got, state = got + list(done.tokens), after
    for done, _ in rounds(pair, cache, state, LENGTH + 1):
        got += done.tokens
    assert_same_text(known, got[:LENGTH], known.written)
    if got[:LENGTH] == known.written:
        assert_same_rows(cache.layers, known.caches, known.tolerance)


def test_a_later_turn_reads_only_what_is_new(known: Known) -> None:
    """After going back to a snapshot, rows of the dropped tokens stayed in the cache."""
    pair = Pair(known.target)
    cache, state = read_prompt(pair)
    cache.append(4)
    known.target.forward(mx.array([known.text[len(PROMPT) - 1 :][:4]]), cache.layers, ())
    cache.snapshot(3)
    cache.commit(4)
    place = cache.length - 1
    cache.append(60)
    known.target.forward(mx.array([[9] * 60]), cache.layers, ())
    cache.commit(60)
    assert cache.trim_to(place) == place
    text = known.text[: place + 1]
    state = type(state)(history=History(text))
    got = [token for done, _ in rounds(pair, cache, state, 20) for token in done.tokens]
    assert_same_text(known, known.written[: place + 1 - len(PROMPT)] + got, known.written[:23])


def test_sampled_text_is_what_plain_sampling_writes(known: Known) -> None:
    """With one seed, drafting changed the sampled text."""
    sampling = SamplingConfig(temperature=0.8, top_p=0.95, seed=3)
    rule = match_rule(sampling, 3)
    alone = answer(Pair(known.target), 40, accept_rule=rule)
    draft = ScriptedDraft([*PROMPT, *alone], [7, 2, 0, 4, 1])
    drafted = answer(Pair(known.target, draft), 40, accept_rule=rule)
    assert drafted == alone or known.tolerance
    same = [a == b for a, b in zip(drafted, alone, strict=True)]
    assert same.count(True) >= 10, "a near tie separates texts late, an error at once"


def test_sampled_tokens_follow_the_target(known: Known) -> None:
    """The frequencies of a round's first and second token are the target's probabilities.

    Pearson's statistic over the most likely tokens and the rest, 400 fixed seeds: a correct
    sampler exceeds the limit in one of 10^5 families.
    """
    sampling = SamplingConfig(temperature=1.0)
    pair = Pair(known.target)
    cache, state = read_prompt(pair)
    best = known.written[0]
    cache.append(2)
    output = known.target.forward(mx.array([[state.anchor, best]]), cache.layers, ())
    logits = known.target.logits(output.hidden)[0]
    scores = log_probs(logits)
    probs = np.array(mx.softmax(filtered(scores, sampling), axis=-1), dtype=np.float64)
    drawn = [choose(logits, sampling, seed, cache.length + 1) for seed in range(400)]
    counts = np.array(mx.stack(drawn))
    for row in range(2):
        assert pearson(counts[:, row], probs[row]) < 40


def pearson(drawn: np.ndarray, probs: np.ndarray) -> float:
    """Return the statistic over the 7 likeliest tokens and all others: 7 degrees of freedom."""
    likely = np.argsort(probs)[-7:]
    seen = np.array([(drawn == token).sum() for token in likely])
    seen = np.append(seen, len(drawn) - seen.sum())
    expected = np.append(probs[likely], 1 - probs[likely].sum()) * len(drawn)
    return float(((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
