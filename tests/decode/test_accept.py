"""What is accepted is what the target would have written: argmax, or a fair draw.

Distribution tests use fixed seeds, so they cannot fail by chance; the odds of a correct sampler
failing under fresh seeds are stated, and a bias of a few per cent would fail.
"""

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode.accept import Scored, match_rule, rejection_rule, request_rule
from dflash_mlx.decode.readback import read_back
from dflash_mlx.decode.sampling import filtered, log_probs
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.models.protocols import Block, Candidates
from dflash_mlx.models.random_keys import draw

GREEDY = match_rule(SamplingConfig(), 0)
LOGITS = mx.array(
    [[2.0, 1.5, 1.0, 0.0, -1.0], [0.3, 1.8, 0.1, 1.7, 0.0], [0.0, 0.5, 1.0, 1.5, 2.0]]
)


def block(tokens, candidates=None, healthy=True):
    return Block(mx.array([tokens], dtype=mx.int32), mx.array(healthy), candidates)


def chi_square(counts, probs):
    """Return the statistic of observed `counts` against `probs`, per degree of freedom."""
    expected = counts.sum() * probs
    assert (counts[probs == 0] == 0).all(), "a token that was filtered out was drawn"
    kept = probs > 0
    return ((counts - expected)[kept] ** 2 / expected[kept]).sum() / (kept.sum() - 1)


def softmax(scores):
    return np.array(mx.softmax(scores, axis=-1), dtype=np.float64)


@pytest.mark.parametrize(
    ("draft", "n_accepted", "final"),
    [([0, 1], 2, [0, 1, 4]), ([0, 3], 1, [0, 1]), ([1, 1], 0, [0]), ([], 0, [0])],
)
def test_greedy_accepts_the_longest_prefix_of_argmaxes(draft, n_accepted, final):
    """A token after the first wrong one follows a text that does not exist."""
    logits = LOGITS[: len(draft) + 1]
    verdict = read_back(GREEDY(block(draft), Scored(logits), [7], 1))
    assert verdict.n_accepted == n_accepted
    assert verdict.tokens[: n_accepted + 1] == final


def test_equal_logits_go_to_the_token_mlx_lm_takes():
    """mlx-lm takes the argmax of rounded log-probabilities, where near logits can tie."""
    logits = mx.array(np.array([[20.0, 20.0 + 2e-6]], dtype=np.float32))
    assert logits[0, 0].item() != logits[0, 1].item()
    expected = mx.argmax(logits - mx.logsumexp(logits, keepdims=True), axis=-1).item()
    assert read_back(GREEDY(block([]), Scored(logits), [7], 1)).tokens == [expected]


def test_a_verdict_carries_the_health_of_the_draft():
    """NaN in a draft's logits gives tokens like any other; nobody would notice."""
    for healthy in (True, False):
        assert (
            read_back(GREEDY(block([0], healthy=healthy), Scored(LOGITS[:2]), [7], 1)).healthy
            is healthy
        )


def test_sampled_tokens_do_not_depend_on_draft_or_block():
    """The same seed gave another text as soon as drafting was switched on."""
    sampling = SamplingConfig(temperature=1.3, top_p=0.9)
    rule = match_rule(sampling, 5)
    for position in range(40):
        alone = read_back(rule(block([]), Scored(LOGITS[:1]), [7], position)).tokens[0]
        for draft in ([0, 1], [1, 3], [4, 4]):
            verdict = read_back(rule(block(draft), Scored(LOGITS), [7], position))
            assert verdict.tokens[0] == alone
            assert verdict.n_accepted == 0 or draft[0] == alone


CASES = {
    "plain": SamplingConfig(temperature=1.0),
    "hot": SamplingConfig(temperature=1.7),
    "top_p": SamplingConfig(temperature=1.0, top_p=0.8),
    "min_p": SamplingConfig(temperature=0.8, min_p=0.3),
    "top_k": SamplingConfig(temperature=1.2, top_k=3),
    "all": SamplingConfig(temperature=1.1, top_p=0.95, min_p=0.05, top_k=4),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_filtered_distribution(case):
    """Chi-square over 2,000 positions; above 5 per degree of freedom at odds below 1e-3."""
    sampling = CASES[case]
    scores = filtered(log_probs(LOGITS[:1]), sampling)
    tokens = draw(mx.broadcast_to(scores, (2000, 5)), seed=11, position=0)
    counts = np.bincount(np.array(tokens), minlength=5)
    assert chi_square(counts, softmax(scores)[0]) < 5


@pytest.mark.parametrize("case", CASES)
def test_filters_apply_in_mlx_lms_order(case):
    """Top-k before top-p, or temperature before either, keeps other tokens."""
    sampling = CASES[case]
    logits = np.array(log_probs(LOGITS[:1]))[0].astype(np.float64)
    order, keep = np.argsort(-logits), np.ones(5, bool)
    probs = np.exp(logits)
    if sampling.top_p < 1:
        mass = np.cumsum(probs[order]) - probs[order]
        keep[order[mass >= sampling.top_p * probs.sum()]] = False
    if sampling.min_p:
        keep &= probs >= sampling.min_p * probs.max()
    if sampling.top_k:
        keep[order[sampling.top_k :]] = False
    expected = np.where(keep, np.exp(logits / sampling.temperature), 0)
    found = softmax(filtered(log_probs(LOGITS[:1]), sampling))[0]
    assert np.allclose(found, expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("case", ["plain", "all"])
def test_rejection_emits_the_target_distribution_whatever_the_draft(case):
    """Speculative sampling: 1,000 rounds, each with a draft token drawn from a skewed q.

    First emitted token against p, and the second against its own row's p given that the first
    was accepted. Above 6 per degree of freedom at odds below 1e-3.
    """
    sampling = CASES[case]
    ids = mx.array([[0, 1, 4], [3, 1, 0]])
    probs = mx.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    verdicts = []
    for seed in range(1000):
        picked = draw(mx.log(probs), seed, 900)
        draft = mx.take_along_axis(ids, picked[:, None], axis=-1)[:, 0]
        proposal = Block(draft[None], mx.array(True), Candidates(ids, probs))
        rule = rejection_rule(sampling, seed)
        verdicts.append(rule(proposal, Scored(LOGITS), [7], 1))
    table = np.array(mx.stack(verdicts))
    accepted, first, second = table[:, 0], table[:, 2], table[:, 3]
    target = softmax(filtered(log_probs(LOGITS), sampling))
    assert chi_square(np.bincount(first, minlength=5), target[0]) < 6
    assert chi_square(np.bincount(second[accepted > 0], minlength=5), target[1]) < 6
    assert accepted.mean() > 0.5


def test_a_certain_wrong_proposal_is_always_refused_and_replaced():
    """With q on a token the target excludes, the residual is the target's own distribution."""
    sampling = SamplingConfig(temperature=1.0, top_k=2)
    candidates = Candidates(mx.array([[4]]), mx.array([[1.0]]))
    for seed in range(20):
        rule = rejection_rule(sampling, seed)
        verdict = read_back(rule(block([4], candidates), Scored(LOGITS[:2]), [7], 1))
        assert verdict.n_accepted == 0
        assert verdict.tokens[0] in (0, 1)


@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_proposal_probabilities_that_are_no_numbers_leave_the_target_alone(bad):
    """A draft that broke inside its selector made the target say what it excludes."""
    sampling = SamplingConfig(temperature=1.0, top_k=1)
    candidates = Candidates(mx.array([[4, 1]]), mx.array([[bad, bad]]))
    for seed in range(5):
        verdict = read_back(
            rejection_rule(sampling, seed)(block([4], candidates), Scored(LOGITS[:2]), [7], 1)
        )
        assert (verdict.n_accepted, verdict.tokens[0]) == (0, 0)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_confidence_of_a_token_is_a_probability_in_every_type(dtype):
    """Half precision overflows at 65504, and the width was chosen by nonsense."""
    logits = mx.array([[30.0, 0.0, 0.0]]).astype(dtype)
    assert read_back(GREEDY(block([]), Scored(logits), [7], 1)).confidence[0] == pytest.approx(
        1, abs=0.01
    )


def best_tokens(*tokens):
    """Best tokens as a kernel gives them, each three times as likely as the next."""
    logits = mx.array([[3.0, 3.0 - math.log(3)]] * len(tokens))
    pairs = mx.array([[token, token + 1] for token in tokens])
    return BestTokens(pairs, logits, logits[:, 0] + math.log(2))


def test_known_best_tokens_need_no_logits():
    """A kernel that avoids writing logits gains nothing if the rule reads them all the same."""
    rule = request_rule(SamplingConfig(), 0)
    unread = mx.full((3, 8), mx.nan)
    verdict = read_back(rule(block([5, 6]), Scored(unread, best_tokens(5, 2, 4)), [7], 1))
    assert (verdict.n_accepted, verdict.tokens) == (1, [5, 2, 4])
    assert verdict.confidence == pytest.approx([0.75] * 3, abs=1e-5)


def test_processors_have_to_see_the_logits():
    """Best tokens of the model alone are not those under a constraint."""
    rule = request_rule(SamplingConfig(), 0, [lambda tokens, logits: -logits])
    known = best_tokens(*mx.argmax(LOGITS, axis=-1).tolist())
    draft = block([1] * (LOGITS.shape[0] - 1))
    expected = mx.argmin(LOGITS, axis=-1).tolist()
    assert read_back(rule(draft, Scored(LOGITS, known), [7], 1)).tokens == expected
