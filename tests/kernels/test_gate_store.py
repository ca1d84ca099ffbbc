"""Stored verdicts survive restarts, and broken files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_mlx.kernels.gate_store import GateStore, Machine, StoredVerdict

MACHINE = Machine("Apple M4 Max", "26.1", "0.32.4")


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """A verdict lost at exit would be raced again at every start."""
    store = GateStore(tmp_path / "new", MACHINE)
    store.write("a", {"slices": 8}, "2.00x stock MLX")
    store.write("b", None, "wrong: off by 3")
    again = GateStore(tmp_path / "new", MACHINE)
    assert again.read("a") == StoredVerdict({"slices": 8}, "2.00x stock MLX")
    assert again.read("b") == StoredVerdict(None, "wrong: off by 3")
    assert again.read("c") is None
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"machine": {}, "verdicts": {}}',
        '{"machine": MACHINE, "verdicts": []}',
        '{"machine": MACHINE, "verdicts": {"a": 3}}',
        '{"machine": MACHINE, "verdicts": {"a": {"geometry": {"slices": "8"}, "reason": "x"}}}',
        '{"machine": MACHINE, "verdicts": {"a": {"geometry": null}}}',
    ],
)
def test_a_broken_file_counts_as_empty(text: str, tmp_path: Path) -> None:
    """A half-written or edited file must cost a race, not the start of the program."""
    store = GateStore(tmp_path, MACHINE)
    machine = {"chip": MACHINE.chip, "macos": MACHINE.macos, "mlx": MACHINE.mlx}
    store.path.write_text(text.replace("MACHINE", json.dumps(machine)))
    again = GateStore(tmp_path, MACHINE)
    assert again.read("a") is None
    again.write("a", None, "right again")
    assert GateStore(tmp_path, MACHINE).read("a") == StoredVerdict(None, "right again")


def test_this_machine_has_a_name() -> None:
    """A machine without a name would share its verdicts with others."""
    here = Machine.here()
    assert here.chip
    assert here.macos
    assert here.mlx.startswith("0.")
