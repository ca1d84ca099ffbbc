"""The report that a Mac owner shares: complete, and nothing that identifies the owner."""

import getpass
import json
import platform
from pathlib import Path

import pytest

from dflash_mlx.bench.run import BenchConfig
from dflash_mlx.doctor import report
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.worker import Worker
from dflash_mlx.models.pair import Pair
from tests.tiny import loaded_pair, random_draft, tiny_target


@pytest.fixture(scope="module")
def made():
    worker = Worker("report")

    def load():
        target = tiny_target("qwen3")
        return loaded_pair(Pair(target, random_draft(target)), model_name="/Users/me/secret-model")

    with pytest.MonkeyPatch.context() as patch, Engine(worker.run(load), worker) as engine:
        patch.setattr(report, "_CONFIG", BenchConfig(n_tokens=8, repeats=1))
        yield report.machine_report(engine, lambda line: None)


def test_it_has_what_a_reader_needs(made):
    """A figure without chip, versions and the equality of texts says nothing."""
    assert made["machine"].keys() >= {
        "chip",
        "memory_bytes",
        "mlx",
        "mlx_lm",
        "dflash_mlx",
        "device",
    }
    assert made["bench"]["exact"] is True
    assert {figure["arm"] for figure in made["bench"]["figures"]} >= {"plain", "auto"}
    assert made["bench"]["forwards"][0]["block_size"] == 1
    assert made["pair"]["family"] == "qwen3"


def test_it_names_no_path_and_no_person(made):
    """A report with a home folder in it is not one that people post."""
    text = json.dumps(made)
    for private in ("/Users", "secret-model", str(Path.home()), platform.node()):
        assert private not in text, private
    assert getpass.getuser() == "root" or getpass.getuser() not in text
    assert "texts" not in made["bench"]
