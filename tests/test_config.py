"""Options are checked when a config is made; errors give the value and the valid range."""

import pytest

from dflash_mlx.config import CacheConfig, GenerationConfig, SamplingConfig
from dflash_mlx.errors import BadRequest


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"temperature": -0.1}, "-0.1"),
        ({"temperature": float("nan")}, "nan"),
        ({"temperature": float("inf")}, "inf"),
        ({"temperature": 1e9}, "1000000000.0"),
        ({"temperature": 1e-40}, "1e-40"),
        ({"top_p": 0.0}, "0.0"),
        ({"top_p": 1.5}, "1.5"),
        ({"top_k": -1}, "-1"),
        ({"top_k": 2.5}, "2.5"),
        ({"min_p": 2}, "2"),
        ({"repetition_penalty": 0}, "0"),
        ({"presence_penalty": 1e6}, "1000000.0"),
        ({"frequency_penalty": "much"}, "much"),
        ({"repetition_context_size": 0}, "0"),
        ({"logit_bias": {-1: 1.0}}, "-1"),
        ({"logit_bias": {1: float("inf")}}, "inf"),
        ({"seed": -1}, "-1"),
        ({"seed": 2**32}, "4294967296"),
        ({"seed": True}, "True"),
    ],
)
def test_impossible_sampling_is_refused_with_its_value(options, got):
    """A negative or NaN temperature sampled tokens without an error."""
    name = next(iter(options))
    with pytest.raises(BadRequest, match=f"{name} is .*{got}.*needs"):
        SamplingConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"max_tokens": 1.5},
        {"block_size": 0},
        {"block_size": 65},
        {"stop": "text"},
        {"stop": ("",)},
        {"stop": tuple("abcdefghijklmnopq")},
        {"thinking": True, "chat_template": False},
    ],
)
def test_impossible_requests_are_refused(options):
    """An empty stop string ended every answer at once."""
    with pytest.raises(BadRequest, match=f"{next(iter(options))} is"):
        GenerationConfig(**options)


@pytest.mark.parametrize(
    "options", [{"max_bytes": 0}, {"prefill_step_size": 0}, {"prefill_step_size": True}]
)
def test_impossible_budgets_are_refused(options):
    """A prefill step of 0 tokens never finished a prompt."""
    with pytest.raises(BadRequest):
        CacheConfig(**options)


def test_a_config_cannot_be_changed_after_its_check():
    """A mapping that the caller changed later was used unchecked."""
    bias = {1: 2.0}
    sampling = SamplingConfig(logit_bias=bias)
    bias[-5] = 1.0
    assert dict(sampling.logit_bias) == {1: 2.0}
    with pytest.raises(TypeError):
        sampling.logit_bias[3] = 1.0


def test_settings_that_differ_from_greedy_are_described():
    """Settings in force were not visible in the output."""
    assert SamplingConfig().described() == "greedy"
    asked = SamplingConfig(temperature=0.7, top_p=0.9, repetition_penalty=1.1)
    assert asked.described() == "temperature 0.7, top-p 0.9, repetition-penalty 1.1"
    assert SamplingConfig(top_p=0.5, presence_penalty=1).described() == "greedy, presence-penalty 1"


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, "1"])
def test_numbers_are_finite_numbers(value):
    """An integer of 400 digits raised OverflowError."""
    with pytest.raises(BadRequest, match="temperature"):
        SamplingConfig(temperature=value)
