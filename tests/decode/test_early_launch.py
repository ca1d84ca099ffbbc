"""Plain steps launched before their anchor is read; drafts launched before a round is yielded."""

import mlx.core as mx
import pytest

from dflash_mlx.decode.loop import StopDecision
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.decode.round import Round
from dflash_mlx.models.pair import Pair
from tests.tiny import PROMPT, answer, oracle_draft, read_prompt, rounds


class Scheduled(FixedBlock):
    """Cycles through block sizes; launches the next draft early in every second round."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(max(sizes))
        self.sizes = sizes
        self.observed: list[Round] = []

    def _at(self, ahead: int) -> int:
        return self.sizes[(len(self.observed) + ahead) % len(self.sizes)]

    def next_block_size(self, context_length: int) -> int:
        return self._at(0)

    def next_step_is_plain(self) -> bool:
        return self._at(0) == self._at(1) == 1

    def times_draft(self) -> bool:
        return len(self.observed) % 5 == 3

    def launches_next_draft_early(self) -> bool:
        return len(self.observed) % 2 == 0

    def observe(self, finished: Round) -> None:
        self.observed.append(finished)


def _five_plain_steps(target) -> list[Round]:
    pair = Pair(target)
    cache, state = read_prompt(pair)
    policy = Scheduled(1)
    list(rounds(pair, cache, state, 5, policy=policy))
    return policy.observed


SCHEDULES = [(1,), (4,), (1, 1, 1, 4, 1, 5), (1, 1, 3, 3, 1), (2, 1, 1)]


@pytest.mark.parametrize("sizes", SCHEDULES)
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 60, 61])
def test_early_launches_do_not_change_the_text(target, tiny_answer, sizes, max_tokens):
    """A wrong commit of a step whose token is not read yet changes the text."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    cache, state = read_prompt(pair)
    written = []
    for done, state in rounds(pair, cache, state, max_tokens, policy=Scheduled(*sizes)):
        written += done.tokens
        assert cache.length == len(state.history) - 1
    assert written == tiny_answer[:max_tokens]


def test_the_verdict_is_launched_before_the_next_step(target, monkeypatch):
    """In one launch with the next step, a token arrived only after that step."""
    launched = []
    monkeypatch.setattr(
        "dflash_mlx.decode.loop.launch",
        lambda *arrays: launched.append([one.shape for one in arrays]),
    )
    answer(Pair(target), 4, policy=Scheduled(1))
    verdict, logits = [(4,)], [(1, target.shape.vocab_size)]
    assert launched == [verdict, logits] * 3


def test_plain_steps_are_launched_before_the_last_token_is_read(target):
    """Waiting for each token first costs plain decoding a tenth of its throughput."""
    assert [done.launched_early for done in _five_plain_steps(target)] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_the_first_and_last_pipelined_steps_do_not_measure_one_round(target):
    """The first also starts the second one's work, and the last finds its own work done."""
    assert [done.measures_one_round for done in _five_plain_steps(target)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_a_plain_step_after_a_block_is_not_launched_early(target, tiny_answer):
    """Launched early, no plain step measured one round, and plain decoding had no cost."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    cache, state = read_prompt(pair)
    policy = Scheduled(1, 4)
    policy.launches_next_draft_early = lambda: True
    list(rounds(pair, cache, state, 20, policy=policy))
    plain = [done for done in policy.observed if not done.drafted]
    assert len(plain) > 2 and all(done.measures_one_round for done in plain)
    assert any(done.launched_early for done in policy.observed)


def test_the_end_of_the_answer_rolls_back_the_early_step(target, tiny_answer):
    """A row of a token after the end stayed in the cache for the next turn."""
    pair = Pair(target)
    for length in (1, 2, 9):
        cache, state = read_prompt(pair)
        written = []

        def stop_condition(tokens, written=written, length=length):
            written.extend(tokens)
            return StopDecision(len(tokens), len(written) == length)

        policy = Scheduled(1)
        for _, state in rounds(pair, cache, state, 50, policy, stop_condition=stop_condition):
            pass
        assert state.ended and written == tiny_answer[:length]
        assert cache.length == len(PROMPT) + length - 1
        assert all(layer.offset == cache.length for layer in cache.layers)


def test_closing_the_loop_rolls_back_the_early_step(target, tiny_answer):
    """A cancelled answer left an uncommitted row in the cache."""
    pair = Pair(target)
    cache, state = read_prompt(pair)
    running = rounds(pair, cache, state, 50, policy=Scheduled(1))
    for _ in range(3):
        _, state = next(running)
    running.close()
    assert all(layer.offset == cache.length == len(PROMPT) + 2 for layer in cache.layers)
    rest = [token for done, _ in rounds(pair, cache, state, 10) for token in done.tokens]
    assert rest == tiny_answer[3:10]


def test_processors_see_every_token_although_steps_are_launched_early(target, tiny_answer):
    """A penalty that did not see the newest token repeated it."""
    from dflash_mlx.config import SamplingConfig
    from dflash_mlx.decode.accept import match_rule

    lengths = []

    def processor(tokens, logits):
        lengths.append((tokens.size, tokens[-1].item()))
        return logits

    rule = match_rule(SamplingConfig(), 0, (processor,))
    answer(Pair(target), 6, policy=Scheduled(1), accept_rule=rule)
    text = [*PROMPT, *tiny_answer]
    assert lengths == [(len(PROMPT) + i, text[len(PROMPT) + i - 1]) for i in range(6)]


def test_rounds_report_the_targets_confidence(target, tiny_answer):
    """The controller resumes drafting when the confidence changes; a wrong row misleads it."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    confidence = {}
    for sizes in ((1,), (6,)):
        cache, state = read_prompt(pair)
        policy = Scheduled(*sizes)
        list(rounds(pair, cache, state, 24, policy=policy))
        confidence[sizes] = [value for done in policy.observed for value in done.confidence]
    assert len(confidence[(1,)]) == 24
    assert confidence[(6,)] == pytest.approx(confidence[(1,)], abs=2e-5)
    logits = mx.sort(target.model(mx.array([list(PROMPT)]))[0, -1])
    assert confidence[(1,)][0] == pytest.approx(
        mx.sigmoid(logits[-1] - logits[-2]).item(), abs=2e-5
    )
