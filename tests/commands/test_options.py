"""Options: values that the user sets override the model's defaults field by field."""

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

from dflash_mlx.commands.app import COMMANDS, _command, as_flags
from dflash_mlx.commands.generate import GenerateOptions
from dflash_mlx.commands.options import RequestOptions
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.errors import BadRequest

MODEL_DEFAULTS = SamplingConfig(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.1)


def test_without_options_the_models_sampling_defaults_apply():
    """Greedy decoding by default gave worse answers than the model's own settings."""
    assert RequestOptions().sampling(MODEL_DEFAULTS) == MODEL_DEFAULTS


def test_a_given_option_overrides_that_field_only():
    """`--temperature 1` must not reset top-p."""
    sampling = RequestOptions(temperature=0.2, seed=5).sampling(MODEL_DEFAULTS)
    assert sampling == SamplingConfig(
        temperature=0.2, top_p=0.8, top_k=20, repetition_penalty=1.1, seed=5
    )


def test_every_sampling_field_has_an_option():
    """A sampling field without a flag cannot be set from the command line."""
    settings = {item.name for item in fields(SamplingConfig)} - {"repetition_context_size"}
    assert settings <= RequestOptions.__dataclass_fields__.keys()


def test_all_options_reach_the_request():
    """An option must not be parsed and then ignored."""
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


def test_block_size_auto_leaves_it_to_the_pair():
    """A number would override the block size that the draft was trained for."""
    assert RequestOptions().generation(SamplingConfig()).block_size is None


def test_options_that_greedy_decoding_ignores_are_named():
    """--top-p without --temperature has no effect, which must be reported."""
    options = RequestOptions(top_p=0.5, seed=1)
    assert options.unused(SamplingConfig()) == ["--top-p", "--seed"]
    assert options.unused(SamplingConfig(temperature=1.0)) == []


def test_impossible_options_are_refused_before_loading():
    """An invalid value was reported only after minutes of loading."""
    with pytest.raises(BadRequest, match="top_p"):
        RequestOptions(top_p=7).check()


def test_as_flags_passes_every_field():
    """Each flag must set the field of its name."""
    seen = []

    def command(options: GenerateOptions) -> None:
        """Run it."""
        seen.append(options)

    flags = as_flags(command)
    assert flags.__doc__ == "Run it."
    parameters = inspect.signature(flags).parameters
    defaults = {name: item.default for name, item in parameters.items() if name != "prompt"}
    flags(**{**defaults, "prompt": "hi", "seed": 3})
    assert seen == [GenerateOptions(prompt="hi", seed=3)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_declares_its_options_in_one_dataclass(name):
    """Three ways of declaring flags gave the same option different help texts."""
    assert list(get_type_hints(_command(name))) == ["options", "return"]


def test_options_of_one_name_have_one_help_text():
    """`--blas` had three help texts."""
    texts = {}
    for name in COMMANDS:
        for item in inspect.signature(as_flags(_command(name))).parameters.values():
            texts.setdefault(item.name, set()).add(item.annotation.__metadata__[0].help)
    shared = ("model", "blas", "as_json", "thinking")
    assert {name: len(texts[name]) for name in shared} == dict.fromkeys(shared, 1)
