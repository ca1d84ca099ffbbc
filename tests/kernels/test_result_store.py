"""Stored tuning results survive restarts and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_mlx.kernels.result_store import ResultStore, StoredResult, TuningPlatform

PLATFORM = TuningPlatform("Apple M4 Max", "26.1", "0.32.4")


def test_written_results_are_read_again(tmp_path: Path) -> None:
    """A result that is lost at exit would be tuned again at every start."""
    store = ResultStore(tmp_path / "new", PLATFORM)
    store.write("a", {"slices": 8}, "2.00x stock MLX")
    store.write("b", None, "wrong: off by 3")
    again = ResultStore(tmp_path / "new", PLATFORM)
    assert again.read("a") == StoredResult({"slices": 8}, "2.00x stock MLX")
    assert again.read("b") == StoredResult(None, "wrong: off by 3")
    assert again.read("c") is None
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


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
    again.write("a", None, "right again")
    assert ResultStore(tmp_path, PLATFORM).read("a") == StoredResult(None, "right again")


def test_this_platform_has_a_name() -> None:
    """A platform without a name would share its results with other machines."""
    here = TuningPlatform.here()
    assert here.chip
    assert here.macos
    assert here.mlx.startswith("0.")
