"""Steps launched before their anchor is read, and drafts launched before the caller has tokens."""

import mlx.core as mx
import pytest

from dflash_mlx.decode.loop import StopDecision
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.decode.round import Round
from dflash_mlx.models.pair import Pair
from tests.tiny import PROMPT, answer, oracle_draft, read_prompt, rounds


class Scheduled(FixedBlock):
    """Rows as listed, over and over; drafts ahead at every second round."""

    def __init__(self, *rows: int) -> None:
        super().__init__(max(rows))
        self.listed = rows
        self.seen: list[Round] = []

    def _at(self, ahead: int) -> int:
        return self.listed[(len(self.seen) + ahead) % len(self.listed)]

    def rows(self, context: int) -> int:
        return self._at(0)

    def next_step_is_plain(self) -> bool:
        return self._at(0) == self._at(1) == 1

    def timed(self) -> bool:
        return len(self.seen) % 5 == 3

    def drafts_ahead(self) -> bool:
        return len(self.seen) % 2 == 0

    def observe(self, done: Round) -> None:
        self.seen.append(done)


def _five_plain_steps(target) -> list[Round]:
    pair = Pair(target)
    cache, state = read_prompt(pair)
    policy = Scheduled(1)
    list(rounds(pair, cache, state, 5, policy=policy))
    return policy.seen


SCHEDULES = [(1,), (4,), (1, 1, 1, 4, 1, 5), (1, 1, 3, 3, 1), (2, 1, 1)]


@pytest.mark.parametrize("listed", SCHEDULES)
@pytest.mark.parametrize("limit", [1, 2, 7, 60, 61])
def test_text_is_that_of_plain_decoding_whatever_is_launched_early(
    target, tiny_answer, listed, limit
):
    """A step launched for a token that is not read yet, wrongly committed, changes the text."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    cache, state = read_prompt(pair)
    written = []
    for done, state in rounds(pair, cache, state, limit, policy=Scheduled(*listed)):
        written += done.tokens
        assert cache.length == len(state.history) - 1
    assert written == tiny_answer[:limit]


def test_a_token_does_not_wait_for_the_step_launched_behind_it(target, monkeypatch):
    """MLX tells that arrays are ready by the launch: with the next step's, tokens came late."""
    launched = []
    monkeypatch.setattr(
        "dflash_mlx.decode.loop.launch",
        lambda *arrays: launched.append([one.shape for one in arrays]),
    )
    answer(Pair(target), 4, policy=Scheduled(1))
    verdict, logits = [(4,)], [(1, target.shape.vocab_size)]
    assert launched == [verdict, logits] * 3


def test_plain_steps_are_launched_before_the_last_token_is_read(target):
    """Waiting for every token first would cost plain decoding a tenth of its speed."""
    assert [done.launched_early for done in _five_plain_steps(target)] == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_only_steps_inside_a_run_tell_what_one_costs(target):
    """The first begins the second one's work, the last finds its own done: neither is a step."""
    assert [done.whole for done in _five_plain_steps(target)] == [False, True, True, True, False]


def test_a_plain_step_chosen_early_is_not_launched_early(target, tiny_answer):
    """It would never count as a step of its own, and plain decoding would have no cost."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    cache, state = read_prompt(pair)
    policy = Scheduled(1, 4)
    policy.drafts_ahead = lambda: True
    list(rounds(pair, cache, state, 20, policy=policy))
    plain = [done for done in policy.seen if not done.drafted]
    assert len(plain) > 2 and all(done.whole for done in plain)
    assert any(done.launched_early for done in policy.seen)


def test_an_ending_drops_the_step_that_was_launched_behind_it(target, tiny_answer):
    """A row of a token nobody wanted, left in the cache, would be part of the next turn."""
    pair = Pair(target)
    for length in (1, 2, 9):
        cache, state = read_prompt(pair)
        kept = []

        def ending(tokens, kept=kept, length=length):
            kept.extend(tokens)
            return StopDecision(len(tokens), len(kept) == length)

        for _, state in rounds(pair, cache, state, 50, policy=Scheduled(1), ending=ending):
            pass
        assert state.ended and kept == tiny_answer[:length]
        assert cache.length == len(PROMPT) + length - 1
        assert all(layer.offset == cache.length for layer in cache.layers)


def test_leaving_early_drops_the_step_that_was_launched(target, tiny_answer):
    """A cancelled answer must leave the conversation as if nothing had been launched."""
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
    """A penalty that misses the newest token repeats it."""
    from dflash_mlx.config import SamplingConfig
    from dflash_mlx.decode.accept import match_rule

    lengths = []

    def processor(tokens, logits):
        lengths.append((tokens.size, tokens[-1].item()))
        return logits

    rule = match_rule(SamplingConfig(), 0, (processor,))
    answer(Pair(target), 6, policy=Scheduled(1), rule=rule)
    behind = [*PROMPT, *tiny_answer]
    assert lengths == [(len(PROMPT) + i, behind[len(PROMPT) + i - 1]) for i in range(6)]


def test_rounds_tell_how_sure_the_target_was(target, tiny_answer):
    """The width controller comes back to drafting when this moves; a wrong row misleads it."""
    pair = Pair(target, oracle_draft([*PROMPT, *tiny_answer]))
    sure = {}
    for listed in ((1,), (6,)):
        cache, state = read_prompt(pair)
        policy = Scheduled(*listed)
        list(rounds(pair, cache, state, 24, policy=policy))
        sure[listed] = [value for done in policy.seen for value in done.confidence]
    assert len(sure[(1,)]) == 24
    assert sure[(6,)] == pytest.approx(sure[(1,)], abs=2e-5)
    logits = mx.sort(target.model(mx.array([list(PROMPT)]))[0, -1])
    assert sure[(1,)][0] == pytest.approx(mx.sigmoid(logits[-1] - logits[-2]).item(), abs=2e-5)
