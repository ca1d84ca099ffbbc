"""Options: what the user gives overrides the model's defaults, field by field."""

from dataclasses import fields

import pytest

from dflash_mlx.commands.options import RequestOptions, spread
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.errors import BadRequest

MODELS = SamplingConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)


def test_nothing_given_means_the_models_own_sampling():
    """Greedy by accident answers worse than the model's makers intended."""
    assert RequestOptions().sampling(MODELS) == MODELS


def test_a_given_option_overrides_that_field_only():
    """`--temperature 1` that also resets top-p is another distribution."""
    sampling = RequestOptions(temperature=0.2, seed=5).sampling(MODELS)
    assert sampling == SamplingConfig(
        temperature=0.2, top_p=0.8, top_k=20, repetition_penalty=1.1, seed=5
    )


def test_every_sampling_field_has_an_option():
    """A setting of the library that the command line cannot reach gets forgotten."""
    settings = {item.name for item in fields(SamplingConfig)} - {"repetition_context_size"}
    assert settings <= RequestOptions.__dataclass_fields__.keys()


def test_all_options_arrive():
    """An option that is parsed and dropped is worse than none."""
    options = RequestOptions(
        block_size="3", max_tokens=7, stop=["a", "b"], thinking=False, logit_bias=["4=-1.5", "9=2"]
    )
    assert options.generation(SamplingConfig()) == GenerationConfig(
        max_tokens=7,
        stop=("a", "b"),
        block_size=3,
        sampling=SamplingConfig(logit_bias={4: -1.5, 9: 2.0}),
        thinking=False,
    )
    plain = RequestOptions().generation(SamplingConfig(), chat_template=False)
    assert plain.chat_template is False


def test_block_auto_leaves_it_to_the_pair():
    """A number here would override what the draft was trained for."""
    assert RequestOptions().generation(SamplingConfig()).block_size is None


def test_options_that_greedy_decoding_ignores_are_named():
    """Someone who sets top-p and gets greedy text should be told why."""
    options = RequestOptions(top_p=0.5, seed=1)
    assert options.idle(SamplingConfig()) == ["--top-p", "--seed"]
    assert options.idle(SamplingConfig(temperature=1.0)) == []


def test_impossible_options_are_refused_before_loading():
    """Minutes of loading before 'top_p is 7' are minutes lost."""
    with pytest.raises(BadRequest, match="top_p"):
        RequestOptions(top_p=7).check()


def test_spread_passes_groups_and_single_parameters():
    """One list of options serves all commands; each value must land in its place."""
    seen = []

    def command(prompt: str, options: RequestOptions, loud: bool = False) -> None:
        """Do it."""
        seen.append((prompt, options, loud))

    flat = spread(command)
    given = {item.name: item.default for item in fields(RequestOptions)} | {"seed": 3}
    flat(prompt="hi", loud=True, **given)
    assert seen == [("hi", RequestOptions(seed=3), True)]
    assert flat.__doc__ == "Do it."


def test_spread_leaves_other_commands_alone():
    """A command without groups is typer's business only."""

    def command(prompt: str) -> None:
        pass

    assert spread(command) is command
