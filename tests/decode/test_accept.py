"""Accept rules: the emitted tokens are the target's argmax or follow its distribution.

Distribution tests use fixed seeds, so they cannot fail by chance. Each states the probability that
a correct sampler fails with a new seed; a bias of a few per cent fails.
"""

import math

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode.accept import match_rule, rejection_rule, request_rule
from dflash_mlx.decode.readback import read_back
from dflash_mlx.decode.sampling import filtered, log_probs
from dflash_mlx.metal.head_merge import BestTokens
from dflash_mlx.models.protocols import Block, Candidates
from dflash_mlx.models.random_keys import draw
from tests.tiny import verify_output

GREEDY = match_rule(SamplingConfig(), 0)
LOGITS = mx.array(
    [[2.0, 1.5, 1.0, 0.0, -1.0], [0.3, 1.8, 0.1, 1.7, 0.0], [0.0, 0.5, 1.0, 1.5, 2.0]]
)


def block(tokens, candidates=None, draft_is_finite=True):
    return Block(mx.array([tokens], dtype=mx.int32), mx.array(draft_is_finite), candidates)


def chi_square(counts, probs):
    """Return the statistic of observed `counts` against `probs`, per degree of freedom."""
    expected = counts.sum() * probs
    assert (counts[probs == 0] == 0).all(), "a filtered token was drawn"
    possible = probs > 0
    error = (counts - expected)[possible] ** 2 / expected[possible]
    return error.sum() / (possible.sum() - 1)


def softmax(scores):
    return np.array(mx.softmax(scores, axis=-1), dtype=np.float64)


@pytest.mark.parametrize(
    ("draft", "n_accepted", "final"),
    [([0, 1], 2, [0, 1, 4]), ([0, 3], 1, [0, 1]), ([1, 1], 0, [0]), ([], 0, [0])],
)
def test_greedy_accepts_the_longest_prefix_of_argmaxes(draft, n_accepted, final):
    """Tokens after the first wrong draft token were accepted."""
    logits = LOGITS[: len(draft) + 1]
    verdict = read_back(GREEDY(block(draft), verify_output(logits), [7], 1))
    assert verdict.n_accepted == n_accepted
    assert verdict.tokens[: n_accepted + 1] == final


def test_near_ties_are_resolved_as_in_mlx_lm():
    """mlx-lm takes the argmax of rounded log-probabilities, where close logits can tie."""
    logits = mx.array(np.array([[20.0, 20.0 + 2e-6]], dtype=np.float32))
    assert logits[0, 0].item() != logits[0, 1].item()
    expected = mx.argmax(logits - mx.logsumexp(logits, keepdims=True), axis=-1).item()
    assert read_back(GREEDY(block([]), verify_output(logits), [7], 1)).tokens == [expected]


def test_a_verdict_reports_whether_the_drafts_logits_are_finite():
    """NaN logits still produce tokens, so a draft with NaN was not detected."""
    for draft_is_finite in (True, False):
        assert (
            read_back(
                GREEDY(
                    block([0], draft_is_finite=draft_is_finite), verify_output(LOGITS[:2]), [7], 1
                )
            ).draft_is_finite
            is draft_is_finite
        )


def test_sampled_tokens_do_not_depend_on_draft_or_block():
    """With the same seed, enabling drafting changed the text."""
    sampling = SamplingConfig(temperature=1.3, top_p=0.9)
    rule = match_rule(sampling, 5)
    for position in range(40):
        plain = read_back(rule(block([]), verify_output(LOGITS[:1]), [7], position)).tokens[0]
        for draft in ([0, 1], [1, 3], [4, 4]):
            verdict = read_back(rule(block(draft), verify_output(LOGITS), [7], position))
            assert verdict.tokens[0] == plain
            assert verdict.n_accepted == 0 or draft[0] == plain


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
    """Chi-square over 2,000 positions; a correct sampler exceeds 5 with probability < 1e-3."""
    sampling = CASES[case]
    scores = filtered(log_probs(LOGITS[:1]), sampling)
    tokens = draw(mx.broadcast_to(scores, (2000, 5)), seed=11, position=0)
    counts = np.bincount(np.array(tokens), minlength=5)
    assert chi_square(counts, softmax(scores)[0]) < 5


@pytest.mark.parametrize("case", CASES)
def test_filters_apply_in_mlx_lms_order(case):
    """Top-k before top-p, or temperature before both, filters other tokens."""
    sampling = CASES[case]
    logits = np.array(log_probs(LOGITS[:1]))[0].astype(np.float64)
    order, allowed = np.argsort(-logits), np.ones(5, bool)
    probs = np.exp(logits)
    if sampling.top_p < 1:
        mass = np.cumsum(probs[order]) - probs[order]
        allowed[order[mass >= sampling.top_p * probs.sum()]] = False
    if sampling.min_p:
        allowed &= probs >= sampling.min_p * probs.max()
    if sampling.top_k:
        allowed[order[sampling.top_k :]] = False
    expected = np.where(allowed, np.exp(logits / sampling.temperature), 0)
    found = softmax(filtered(log_probs(LOGITS[:1]), sampling))[0]
    assert np.allclose(found, expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize("case", ["plain", "all"])
def test_rejection_emits_the_target_distribution_whatever_the_draft(case):
    """1,000 rounds of speculative sampling with draft tokens drawn from a skewed q.

    The first emitted token is compared with p, the second with its row's p where the first was
    accepted. A correct sampler exceeds 6 per degree of freedom with probability < 1e-3.
    """
    sampling = CASES[case]
    ids = mx.array([[0, 1, 4], [3, 1, 0]])
    probs = mx.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    verdicts = []
    for seed in range(1000):
        drawn = draw(mx.log(probs), seed, 900)
        draft = mx.take_along_axis(ids, drawn[:, None], axis=-1)[:, 0]
        proposal = Block(draft[None], mx.array(True), Candidates(ids, probs))
        rule = rejection_rule(sampling, seed)
        verdicts.append(rule(proposal, verify_output(LOGITS), [7], 1))
    table = np.array(mx.stack(verdicts))
    accepted, first, second = table[:, 0], table[:, 2], table[:, 3]
    target = softmax(filtered(log_probs(LOGITS), sampling))
    assert chi_square(np.bincount(first, minlength=5), target[0]) < 6
    assert chi_square(np.bincount(second[accepted > 0], minlength=5), target[1]) < 6
    assert accepted.mean() > 0.5


def test_a_proposal_with_target_probability_zero_is_rejected():
    """If q is 1 for a token the target excludes, the residual is the target's distribution."""
    sampling = SamplingConfig(temperature=1.0, top_k=2)
    candidates = Candidates(mx.array([[4]]), mx.array([[1.0]]))
    for seed in range(20):
        rule = rejection_rule(sampling, seed)
        verdict = read_back(rule(block([4], candidates), verify_output(LOGITS[:2]), [7], 1))
        assert verdict.n_accepted == 0
        assert verdict.tokens[0] in (0, 1)


@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_nan_or_zero_draft_probabilities_reject_the_draft_token(bad):
    """NaN from a draft's selector led to tokens that the target excludes."""
    sampling = SamplingConfig(temperature=1.0, top_k=1)
    candidates = Candidates(mx.array([[4, 1]]), mx.array([[bad, bad]]))
    for seed in range(5):
        verdict = read_back(
            rejection_rule(sampling, seed)(
                block([4], candidates), verify_output(LOGITS[:2]), [7], 1
            )
        )
        assert (verdict.n_accepted, verdict.tokens[0]) == (0, 0)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_confidence_of_a_token_is_a_probability_in_every_type(dtype):
    """float16 overflows at 65504, and the controller received wrong confidences."""
    logits = mx.array([[30.0, 0.0, 0.0]]).astype(dtype)
    assert read_back(GREEDY(block([]), verify_output(logits), [7], 1)).confidence[
        0
    ] == pytest.approx(1, abs=0.01)


def best_tokens(*tokens):
    """Best tokens as a kernel returns them, each three times as likely as the second best."""
    logits = mx.array([[3.0, 3.0 - math.log(3)]] * len(tokens))
    pairs = mx.array([[token, token + 1] for token in tokens])
    return BestTokens(pairs, logits, logits[:, 0] + math.log(2))


def test_known_best_tokens_need_no_logits():
    """A kernel that avoids writing logits saves nothing if the rule computes them anyway."""
    rule = request_rule(SamplingConfig(), 0)
    unread = mx.full((3, 8), mx.nan)
    verdict = read_back(rule(block([5, 6]), verify_output(unread, best_tokens(5, 2, 4)), [7], 1))
    assert (verdict.n_accepted, verdict.tokens) == (1, [5, 2, 4])
    assert verdict.confidence == pytest.approx([0.75] * 3, abs=1e-5)


def test_processors_override_known_best_tokens():
    """The best tokens of the model are not the best tokens after a processor."""
    rule = request_rule(SamplingConfig(), 0, [lambda tokens, logits: -logits])
    known = best_tokens(*mx.argmax(LOGITS, axis=-1).tolist())
    draft = block([1] * (LOGITS.shape[0] - 1))
    expected = mx.argmin(LOGITS, axis=-1).tolist()
    assert read_back(rule(draft, verify_output(LOGITS, known), [7], 1)).tokens == expected
