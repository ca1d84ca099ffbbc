"""Draft tokens from text: the answer is that of plain decoding, whatever is proposed."""

import itertools

import pytest

from dflash_mlx.config import SamplingConfig
from dflash_mlx.controller.text_policy import TextPolicy, TextStatistics
from dflash_mlx.decode.accept import match_rule
from dflash_mlx.decode.greedy import greedy_rounds
from dflash_mlx.decode.policy import FixedBlock, TextProposal
from dflash_mlx.models.pair import Pair
from dflash_mlx.proposals.context_copy import ContextCopy
from dflash_mlx.proposals.prediction import Prediction
from tests.tiny import PROMPT, ScriptedDraft, oracle_draft, plain, random_draft, tiny_target
from tests.tiny_configs import CONFIGS, PACKAGINGS

N_TOKENS = 48
SCRIPTS = {"right": [31], "wrong": [0], "mixed": [0, 3, 31, 1, 0, 5, 15, 2, 7]}


class ScriptedText(FixedBlock):
    """Alternates text of up to 32 tokens, as right as its script says, with the draft's blocks."""

    def __init__(self, answer, script, draft_size, every=2):
        super().__init__(draft_size)
        self.n_written, self.n_rounds = 0, 0
        self._answer, self._script, self._every = answer, itertools.cycle(script), every

    def next_step_is_plain(self):
        return False

    def next_text(self, max_block_size):
        if self.n_rounds % self._every:
            return None
        n_right = next(self._script)
        right = self._answer[self.n_written : self.n_written + 31][: max_block_size - 1]
        tokens = [t if at < n_right else (t + 1) % 256 for at, t in enumerate(right)]
        return TextProposal("scripted", tuple(tokens)) if tokens else None

    def observe(self, finished):
        self.n_rounds += 1
        self.n_written += len(finished.tokens)


def written(pair, policy, n_tokens=N_TOKENS, **options):
    rounds = list(greedy_rounds(pair, PROMPT, n_tokens, policy, text=policy, **options))
    return [token for finished in rounds for token in finished.tokens], rounds


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("family", [name for name in CONFIGS if name not in PACKAGINGS])
def test_text_equals_plain_decoding_on_every_family(family, script):
    """Blocks of 32 wrap windows of 16 rows, and wrong text rolls back every kind of cache."""
    target = tiny_target(family)
    answer = plain(target.model, PROMPT, N_TOKENS + 32)
    expected = [t for r in greedy_rounds(Pair(target), PROMPT, N_TOKENS) for t in r.tokens]
    draft = ScriptedDraft([*PROMPT, *answer], [2, 0, 7])
    for pair, size in ((Pair(target), 1), (Pair(target, draft), 4)):
        got, rounds = written(pair, ScriptedText(answer, SCRIPTS[script], size))
        assert got == expected
        text = [finished for finished in rounds if finished.source == "scripted"]
        assert len(text) > 1
        assert (sum(finished.accepted for finished in text) == 0) is (script == "wrong")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_policy_does_not_change_the_answer(target, temperature):
    """Copies, a wrong prediction and the draft model mixed gave another text for the same seed."""
    rule = match_rule(SamplingConfig(temperature=temperature), 5)
    rounds = greedy_rounds(Pair(target), PROMPT, 120, accept_rule=rule)
    expected = [token for finished in rounds for token in finished.tokens]
    predictions = [expected, expected[30:], list(PROMPT) * 3]
    for pair, size in ((Pair(target), 1), (Pair(target, random_draft(target)), 8)):
        for predicted in predictions:
            sources = [ContextCopy(PROMPT), Prediction(predicted)]
            policy = TextPolicy(sources, FixedBlock(size))
            assert written(pair, policy, 120, accept_rule=rule)[0] == expected


def test_a_right_prediction_needs_few_rounds(target, tiny_answer):
    """A prediction that is proposed in small blocks only saves little."""
    policy = TextPolicy([Prediction(tiny_answer)], FixedBlock(1), TextStatistics())
    got, rounds = written(Pair(target), policy, 120)
    assert got == tiny_answer[:120]
    assert len(rounds) < 40
    assert {finished.source for finished in rounds if finished.drafted} == {"prediction"}


def test_features_of_text_rounds_reach_the_draft(target, tiny_answer):
    """A gap in the draft's context after text lowers its acceptance."""
    draft = oracle_draft([*PROMPT, *tiny_answer])
    policy = ScriptedText(tiny_answer, [31, 3], 8)
    got, rounds = written(Pair(target, draft), policy, 100)
    assert got == tiny_answer[:100]
    drafted = [finished for finished in rounds[:-1] if finished.source == "draft"]
    assert drafted and all(finished.accepted == finished.drafted for finished in drafted)
    assert sum(features.shape[1] for features in draft.extended) <= len(PROMPT) + 100
