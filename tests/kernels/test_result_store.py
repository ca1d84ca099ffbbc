"""Stored tuning results survive restarts and damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_mlx.kernels.result_store import ResultStore, StoredResult, TuningPlatform

PLATFORM = TuningPlatform("Apple M4 Max", "26.1", "0.32.4")


def test_written_results_are_read_again(tmp_path: Path) -> None:
    """A result that is lost at exit would be tuned again at every start."""
    store = ResultStore(tmp_path / "new", PLATFORM)
    store.finish("a", StoredResult({"slices": 8}, "2.00x stock MLX"))
    store.finish("b", StoredResult(None, "wrong: off by 3", 1))
    again = ResultStore(tmp_path / "new", PLATFORM)
    assert again.read("a") == StoredResult({"slices": 8}, "2.00x stock MLX")
    assert again.read("b") == StoredResult(None, "wrong: off by 3", 1)
    assert again.read("c") is None
    assert {path.suffix for path in (tmp_path / "new").iterdir()} == {".json", ".lock"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"platform": {}, "results": {}}',
        '{"platform": PLATFORM, "results": []}',
        '{"platform": PLATFORM, "results": {"a": 3}}',
        '{"platform": PLATFORM, "results": {"a": {"geometry": {"slices": "8"}, "reason": "x"}}}',
        '{"platform": PLATFORM, "results": {"a": {"geometry": null}}}',
    ],
)
def test_a_broken_file_counts_as_empty(text: str, tmp_path: Path) -> None:
    """A half-written or edited file must only repeat tuning, not stop the program."""
    store = ResultStore(tmp_path, PLATFORM)
    platform = {"chip": PLATFORM.chip, "macos": PLATFORM.macos, "mlx": PLATFORM.mlx}
    store.path.write_text(text.replace("PLATFORM", json.dumps(platform)))
    again = ResultStore(tmp_path, PLATFORM)
    assert again.read("a") is None
    again.finish("a", StoredResult(None, "correct again"))
    assert ResultStore(tmp_path, PLATFORM).read("a") == StoredResult(None, "correct again")


def test_this_platform_has_a_name() -> None:
    """A platform without a name would share its results with other machines."""
    here = TuningPlatform.here()
    assert here.chip
    assert here.macos
    assert here.mlx.startswith("0.")


WRITER = """
import sys
from pathlib import Path
from dflash_mlx.kernels.result_store import StoredResult, ResultStore, TuningPlatform
store = ResultStore(Path(sys.argv[1]), TuningPlatform("Apple M4 Max", "26.1", "0.32.4"))
print("ready", flush=True)
sys.stdin.readline()
for i in range(20):
    key = f"{sys.argv[2]} {i}"
    store.begin(key)
    store.finish(key, StoredResult(None, "a reason"))
"""


def test_two_processes_lose_no_results(tmp_path: Path) -> None:
    """The last writer replaced the file, and half of the results were tuned again."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen(
            [*command, name], cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n")
        assert writer.returncode == 0
    store = ResultStore(tmp_path, PLATFORM)
    assert all(store.read(f"{name} {i}") is not None for name in "ab" for i in range(20))


def test_two_stores_in_one_process_lose_no_results(tmp_path: Path) -> None:
    """Two loaded pairs share the file of their platform."""
    first, second = ResultStore(tmp_path, PLATFORM), ResultStore(tmp_path, PLATFORM)
    first.finish("a", StoredResult(None, "first"))
    second.finish("b", StoredResult(None, "second"))
    again = ResultStore(tmp_path, PLATFORM)
    assert again.read("a") is not None
    assert again.read("b") is not None


def test_a_running_case_of_a_live_process_has_no_result(tmp_path: Path) -> None:
    """Another process that tunes the case now has not crashed."""
    ResultStore(tmp_path, PLATFORM).begin("a")
    assert ResultStore(tmp_path, PLATFORM).read("a") is None
