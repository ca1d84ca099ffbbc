"""Logits processors inside a block: equal to mlx-lm's sequential decoding."""

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_logits_processors

from dflash_mlx.config import SamplingConfig
from dflash_mlx.decode.accept import match_rule
from dflash_mlx.decode.logits_processors import make_processors
from dflash_mlx.models.pair import Pair
from tests.tiny import PROMPT, ScriptedDraft, answer, plain

CASES = {
    "repetition": ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    "presence": ({"presence_penalty": 0.9}, {"presence_penalty": 0.9}),
    "frequency": ({"frequency_penalty": 0.7}, {"frequency_penalty": 0.7}),
    "bias": ({"logit_bias": {65: 4.0, 66: -3.0}}, {"logit_bias": {65: 4.0, 66: -3.0}}),
    "all": (
        {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "logit_bias": {70: 2.0},
            "repetition_context_size": 7,
        },
        {
            "repetition_penalty": 1.2,
            "repetition_context_size": 7,
            "presence_penalty": 0.5,
            "presence_context_size": 7,
            "frequency_penalty": 0.5,
            "frequency_context_size": 7,
            "logit_bias": {70: 2.0},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("script", [[10**6], [0], [3, 0, 7, 1]])
def test_penalties_inside_a_block_equal_sequential_decoding(target, case, script):
    """Penalties that ignored the block's own tokens allowed a repetition inside it."""
    ours, theirs = CASES[case]
    expected = plain(target.model, PROMPT, 48, logits_processors=make_logits_processors(**theirs))
    sampling = SamplingConfig(**ours)
    rule = match_rule(sampling, 0, make_processors(sampling, ()))
    pair = Pair(target, ScriptedDraft([*PROMPT, *expected, *PROMPT], script))
    assert answer(pair, 48, accept_rule=rule) == expected
    assert expected != plain(target.model, PROMPT, 48), "the case does not change the text"


def test_a_callers_processor_sees_the_tokens_before_its_row(target):
    """A grammar that receives rejected tokens loses its position."""

    def alternate(tokens, logits):
        allowed = mx.arange(logits.shape[-1]) % 2 == (tokens.size % 2)
        return mx.where(allowed, logits, -mx.inf)

    expected = plain(target.model, PROMPT, 40, logits_processors=[alternate])
    assert all(token % 2 == (len(PROMPT) + i) % 2 for i, token in enumerate(expected))
    rule = match_rule(SamplingConfig(), 0, make_processors(SamplingConfig(), [alternate]))
    for script in ([10**6], [0], [2, 5, 0]):
        pair = Pair(target, ScriptedDraft([*PROMPT, *expected, *PROMPT], script))
        assert answer(pair, 40, accept_rule=rule) == expected


def test_defaults_add_no_processor():
    """Applying a penalty of 1 costs time and changes rounding."""
    assert make_processors(SamplingConfig(), ()) == ()
