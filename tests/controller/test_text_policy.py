"""The choice between draft tokens from text and the draft model."""

import random

import pytest

from dflash_mlx.controller.text_estimates import BlockCosts, TextAcceptance
from dflash_mlx.controller.text_policy import TextPolicy, TextStatistics
from dflash_mlx.decode.policy import FixedBlock, launches_next_step_early
from dflash_mlx.decode.round import Round
from dflash_mlx.proposals.context_copy import ContextCopy


class Repeats:
    """A source that always proposes token 1, with the given match length."""

    name = "repeats"

    def __init__(self, match_length):
        self.match_length = match_length
        self.next_match_length = match_length + 1

    def extend(self, tokens):
        pass

    def propose(self, n_tokens):
        return [1] * n_tokens


def simulate(policy, n_rounds, right, cost=lambda size: 0.01 + 0.001 * (size - 1), draft_s=0.0):
    """Run rounds in which `right` tokens of a text block are right; return the sources."""
    sources = []
    for _ in range(n_rounds):
        text = policy.next_text(64)
        size = len(text.tokens) + 1 if text else policy.next_block_size(0)
        accepted = min(right, size - 1)
        tokens = (1,) * accepted + (1 if right > accepted else 2,)
        source = text.source if text else "draft"
        seconds = cost(size) + (draft_s if source == "draft" and size > 1 else 0)
        policy.observe(Round(tokens, size - 1, accepted, True, seconds, source=source))
        sources.append((source, size))
    return sources


def test_text_that_is_accepted_is_used_in_large_blocks():
    """A block size that stays small pays for many forwards."""
    policy = TextPolicy([Repeats(20)], FixedBlock(1))
    assert simulate(policy, 30, right=40)[-1] == ("repeats", 32)


def test_text_that_is_rejected_is_no_longer_used():
    """Wrong copies cost rows in every round."""
    policy = TextPolicy([Repeats(20)], FixedBlock(1))
    sources = [source for source, _ in simulate(policy, 40, right=0)]
    assert sources[-20:] == ["draft"] * 20


def test_acceptance_is_observed_without_verifying_text():
    """Without this, text that was rejected once is never tried again."""
    policy = TextPolicy([Repeats(20)], FixedBlock(1))
    simulate(policy, 40, right=0)
    assert simulate(policy, 60, right=40)[-1][0] == "repeats"


def test_a_faster_draft_model_keeps_its_rounds():
    """Text with two accepted tokens does not beat a draft with eight at a similar cost."""
    policy = TextPolicy([Repeats(8)], FixedBlock(8))
    for _ in range(20):
        policy.observe(Round((1, 1, 2) + (3,) * 5, 7, 7, True, 0.012))
    assert policy.next_text(64) is None


def test_the_draft_policy_does_not_observe_text():
    """Costs and acceptance of text would be learned as those of the draft model."""
    seen = []
    policy = TextPolicy([Repeats(20)], FixedBlock(1))
    policy.draft_policy.observe = seen.append
    policy.observe(Round((1,) * 8, 7, 7, True, 0.02, source="repeats"))
    policy.observe(Round((1,), 0, 0, True, 0.01))
    assert [finished.drafted for finished in seen] == [0]


def test_plain_steps_are_pipelined_where_no_text_can_follow():
    """A step launched early is always plain, so text after it is lost; without text it is not."""
    silent = Repeats(0)
    silent.next_match_length = 0
    assert TextPolicy([silent], FixedBlock(1)).next_step_is_plain()
    assert not TextPolicy([Repeats(20)], FixedBlock(1)).next_step_is_plain()
    assert not TextPolicy([silent], FixedBlock(8)).next_step_is_plain()


def test_a_block_is_never_larger_than_allowed():
    """Blocks beyond the last token of the answer would be verified in vain."""
    policy = TextPolicy([Repeats(50)], FixedBlock(1), TextStatistics(), max_block_size=6)
    simulate(policy, 20, right=40)
    assert len(policy.next_text(64).tokens) == 5
    assert len(policy.next_text(3).tokens) == 2
    assert policy.next_text(1) is None


def test_costs_are_interpolated_and_extrapolated():
    """An unmeasured size must look neither free nor prohibitive."""
    costs = BlockCosts()
    assert costs.seconds(1) == 1 and costs.seconds(8) > 1
    for _ in range(3):
        costs.observe(1, 0.010)
        costs.observe(8, 0.024)
    assert costs.seconds(1) == pytest.approx(0.010)
    assert costs.seconds(4) == pytest.approx(0.016)
    assert costs.seconds(15) == pytest.approx(0.038)
    assert costs.largest_allowed == 16


def test_longer_matches_are_learned_separately():
    """Short matches are mostly chance; they must not spoil the rate of long ones."""
    acceptance = TextAcceptance()
    for _ in range(40):
        acceptance.observe(2, 0, 8)
        acceptance.observe(40, 8, 8)
    assert acceptance.expected(2, 7) < 0.3
    assert acceptance.expected(40, 7) > 6


def speedup(context, answer, cost, statistics):
    """Return the speedup over pipelined plain steps, with copies and no draft model."""
    policy = TextPolicy([ContextCopy(context)], FixedBlock(1), statistics)
    at, total, early = 0, 0.0, False
    while at < len(answer):
        remaining = len(answer) - at
        text = None if early else policy.next_text(remaining)
        draft = text.tokens if text else ()
        size = len(draft) + 1
        pipelined = launches_next_step_early(policy, size, remaining)
        right = 0
        while right < len(draft) and draft[right] == answer[at + right]:
            right += 1
        tokens = tuple(answer[at : at + right + 1])
        alone = 1.1 if size == 1 and not early and not pipelined else 1.0
        seconds = cost(size) * alone
        source = text.source if text else "draft"
        policy.observe(
            Round(
                tokens,
                size - 1,
                right,
                True,
                seconds,
                launched_early=early,
                pipelined_next=pipelined,
                source=source,
            )
        )
        early, at, total = pipelined, at + len(tokens), total + seconds
    return len(answer) / total


@pytest.mark.parametrize("slope", [0.03, 0.2, 0.5])
def test_copies_are_faster_on_edits_and_not_slower_on_new_text(slope):
    """Every row of a block costs `slope` plain steps; wrong copies must not be tried for long."""
    randomness, found = random.Random(0), {"edit": [], "new": []}
    statistics = {kind: TextStatistics() for kind in found}
    for _ in range(8):
        context = [randomness.randrange(3000) for _ in range(300)]
        edit = [randomness.randrange(3000) if randomness.random() < 0.05 else t for t in context]
        new = [randomness.randrange(3000) for _ in range(300)]
        for kind, answer in (("edit", edit), ("new", new)):
            cost = lambda size: 1 + slope * (size - 1)  # noqa: E731
            found[kind].append(speedup(context, answer, cost, statistics[kind]))
    assert sum(found["new"]) / 8 > 0.98
    assert sum(found["edit"]) / 8 > {0.03: 3.5, 0.2: 2.0, 0.5: 1.3}[slope]
