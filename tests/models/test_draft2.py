"""DFlash 2: sampled paths against the official sampler, and exactness of accepted tokens."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.decode.accept import request_rule
from dflash_mlx.decode.readback import read_back
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.worker import Worker
from dflash_mlx.models.draft.config import ConvolutionConfig, SelectorConfig
from dflash_mlx.models.draft.dflash2 import BlockConvolution, CandidateSelector
from dflash_mlx.models.pair import Pair
from tests.models.golden import SECOND, assert_close, extend, load
from tests.tiny import (
    PROMPT,
    answer,
    draft_config,
    loaded_pair,
    plain,
    selecting_draft,
    tiny_target,
    verify_output,
)

SECOND_DRAFT = {"convolution": ConvolutionConfig(2, 8), "selector": SelectorConfig(8, 6)}


@pytest.mark.parametrize("name", SECOND)
def test_a_drawn_path_has_the_official_probabilities(name: str) -> None:
    """Rejection sampling with wrong probabilities changes the distribution of the text."""
    golden = load(name)
    draft, temperature = golden.draft, golden.temperature
    context = draft.make_context()
    for expected in golden.rounds:
        extend(draft, expected["features"], context, rows=64)
        anchor, n_rows = expected["block"][0].item(), len(expected["block"])
        hidden = draft.hidden(anchor, n_rows, context)
        select = draft.model.candidate_selector
        ids, unary, _ = draft.candidates(draft.for_head(hidden))
        given = mx.argmax(ids == expected["path"][:, None], axis=-1)
        path = select(hidden, ids, unary, anchor, lambda scores, slot: given[slot])  # noqa: B023
        order = mx.argsort(path.ids, axis=-1)
        probs = mx.softmax(path.scores / temperature, axis=-1)
        assert path.tokens.tolist() == expected["path"].tolist()
        assert mx.take_along_axis(path.ids, order, axis=-1).tolist() == (
            expected["candidates"].tolist()
        )
        assert_close(mx.take_along_axis(probs, order, axis=-1), expected["probs"])


def test_candidates_are_what_the_path_was_drawn_from() -> None:
    """Frequencies of a slot equal its candidates' probabilities: 300 seeds, false alarms 1 in
    10^5."""
    draft = selecting_draft(tiny_target())
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 20, 64), key=mx.random.key(1)), 0, context)
    counts = np.zeros(260)
    for seed in range(300):
        block = draft.with_sampling(0.9, seed).propose(65, 2, context)
        counts[block.tokens.item()] += 1
    ids, probs = np.array(block.candidates.ids[0]), np.array(block.candidates.probs[0])
    assert counts[ids].sum() == 300
    expected = probs * 300
    assert ((counts[ids] - expected) ** 2 / expected).sum() < 33  # 5 degrees of freedom


def test_accepted_and_rejected_tokens_together_follow_the_target() -> None:
    """The first token's frequencies are the target's, whatever was proposed: 400 seeds, false
    alarms 1 in 10^5."""
    draft = selecting_draft(tiny_target())
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 20, 64), key=mx.random.key(1)), 0, context)
    best = draft.with_sampling(1.0, 0).propose(65, 3, context).candidates.ids
    logits = mx.zeros((3, 260)) - 3
    logits[0, best[0]] = mx.array([2.0, 1.0, 1.5, 0.0, 0.5, -1.0])
    sampling = SamplingConfig(temperature=1.0)
    counts = np.zeros(260)
    for seed in range(400):
        block = draft.with_sampling(1.0, seed).propose(65, 3, context)
        verdict = request_rule(sampling, seed)(block, verify_output(logits), [65], 21)
        counts[read_back(verdict).tokens[0]] += 1
    ids = np.array(best[0])
    probs = np.array(mx.softmax(logits[0]))
    seen = np.append(counts[ids], 400 - counts[ids].sum())
    expected = np.append(probs[ids], 1 - probs[ids].sum()) * 400
    assert ((seen - expected) ** 2 / expected).sum() < 35  # 6 degrees of freedom


def test_a_greedy_request_gets_a_certain_proposal() -> None:
    """A proposal with probabilities is rejected at random although the target is greedy."""
    draft = selecting_draft(tiny_target())
    context = draft.make_context()
    draft.extend(mx.zeros((1, 3, 64)), 0, context)
    assert draft.with_sampling(0.0, 5).propose(65, 4, context).candidates is None


def test_a_convolution_reaches_neither_forward_nor_out_of_the_block() -> None:
    """A row that reads later rows makes every proposal depend on masked positions."""
    layer = BlockConvolution(16, ConvolutionConfig(3, 4))
    layer.base_kernel = mx.random.normal((2, 3, 16), key=mx.random.key(1))
    rows = mx.random.normal((1, 6, 16), key=mx.random.key(2))
    whole, kernels = layer.before(rows)
    for end in range(1, 7):
        part, some = layer.before(rows[:, :end])
        assert mx.allclose(part, whole[:, :end], atol=1e-6)
        assert mx.allclose(layer.after(rows[:, :end], some), layer.after(rows, kernels)[:, :end])
    changed = mx.concatenate([rows[:, :3], rows[:, 3:] + 1], axis=1)
    assert mx.array_equal(layer.before(changed)[0][:, :3], whole[:, :3])


def test_an_anchor_beyond_the_codebook_is_clamped() -> None:
    """The target's padded vocabulary is larger than the codebook, which was read past its end."""
    target = tiny_target()
    config = draft_config(target, **SECOND_DRAFT, vocab_size=200)
    selector = CandidateSelector(config, config.selector)
    hidden, unary = mx.zeros((1, 2, 32)), mx.random.normal((2, selector.top_k))
    ids = mx.broadcast_to(mx.arange(selector.top_k), unary.shape)
    path = selector(hidden, ids, unary, 259, lambda scores, slot: mx.argmax(scores))
    assert mx.isfinite(path.scores).all()


def test_ids_that_only_pad_one_side_are_never_proposed() -> None:
    """Padded rows of a head are untrained, and their logits can be the largest."""
    target = tiny_target()
    draft = selecting_draft(target, vocab_size=200)
    target.model.lm_head.weight[200:] = 100.0
    context = draft.make_context()
    draft.extend(mx.random.normal((1, 5, 64)), 0, context)
    for seed in range(20):
        block = draft.with_sampling(2.0, seed).propose(65, 8, context)
        assert max(block.tokens[0].tolist()) < 200


def test_greedy_text_with_a_second_draft_is_the_targets_own() -> None:
    """A selected path must not change greedy text."""
    target = tiny_target()
    want = plain(target.model, PROMPT, 40)
    assert answer(Pair(target, selecting_draft(target)), 40) == want


def test_a_seed_gives_the_same_sampled_text_again() -> None:
    """Two runs with one seed gave different texts."""
    worker = Worker("test")

    def load() -> LoadedPair:
        target = tiny_target()
        return loaded_pair(Pair(target, selecting_draft(target)))

    with Engine(worker.run(load), worker) as engine:
        config = GenerationConfig(max_tokens=30, sampling=SamplingConfig(temperature=1.5, seed=4))
        first, second = (engine.generate("Hello", config) for _ in range(2))
        assert first.tokens == second.tokens
        other = SamplingConfig(temperature=1.5, seed=5)
        assert engine.generate("Hello", replace(config, sampling=other)).tokens != first.tokens


def test_the_loop_draws_from_the_target_whatever_the_selector_proposes() -> None:
    """The second and third tokens of many short answers have the frequencies of plain sampling.

    Pearson's statistic between the two samples, 60 answers each: false alarms 1 in 10^5.
    """
    target = tiny_target(vocab_size=260)
    draft = selecting_draft(target)
    sampling = SamplingConfig(temperature=0.5)
    counts = np.zeros((2, 2, 260))
    for seed in range(60):
        rule = request_rule(sampling, seed)
        drawn = answer(
            Pair(target, draft.with_sampling(0.5, seed)), 3, PROMPT[:8], accept_rule=rule
        )
        alone = answer(
            Pair(target), 3, PROMPT[:8], accept_rule=request_rule(sampling, seed + 10_000)
        )
        for way, tokens in enumerate((drawn, alone)):
            for place in range(2):
                counts[way, place, tokens[place + 1]] += 1
    for place in range(2):
        likely = np.argsort(counts[:, place].sum(axis=0))[-6:]
        seen = counts[:, place, likely]
        seen = np.concatenate([seen, 60 - seen.sum(axis=1, keepdims=True)], axis=1)
        both = seen.sum(axis=0)
        assert ((seen[0] - seen[1]) ** 2 / np.maximum(both, 1)).sum() < 35  # 6 degrees of freedom


def test_a_broken_draft_does_no_harm_to_sampled_text() -> None:
    """NaN probabilities changed the target's tokens."""
    draft = selecting_draft(tiny_target())
    draft.model.candidate_selector.hidden_projection.weight *= float("nan")
    context = draft.make_context()
    draft.extend(mx.zeros((1, 3, 64)), 0, context)
    logits = mx.zeros((4, 260)) - 30
    logits[:, 77] = 30.0
    for seed in range(5):
        block = draft.with_sampling(1.0, seed).propose(65, 4, context)
        verdict = read_back(
            request_rule(SamplingConfig(temperature=1.0), seed)(
                block, verify_output(logits), [65], 4
            )
        )
        assert not verdict.draft_is_finite
        assert set(verdict.tokens[: verdict.n_accepted + 1]) == {77}
