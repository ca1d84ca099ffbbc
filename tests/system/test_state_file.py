"""State files of the program: read, validated, and set aside when damaged."""

import json
import os

import pytest

from dflash_mlx.system.state_file import read_state


def parse(values):
    """Return the value of a valid file."""
    return int(values["count"])


def test_a_valid_file_is_parsed(tmp_path):
    """The usual case gives a value and no notice."""
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"count": 3}))
    assert read_state(file, "the count", parse) == (3, None)


def test_a_missing_file_gives_no_notice(tmp_path):
    """The first start is not a fault."""
    assert read_state(tmp_path / "state.json", "the count", parse) == (None, None)


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"count": "x"}', "[" * 200_000, "\x00", "1e400"],
    ids=lambda text: text[:20],
)
def test_a_damaged_file_is_moved_with_one_line(tmp_path, text):
    """Lists of exception types missed RecursionError and OverflowError."""
    file = tmp_path / "state.json"
    file.write_text(text)
    value, notice = read_state(file, "the count", parse, "it is counted again")
    assert value is None and "\n" not in notice and str(file) in notice
    assert notice.endswith("it is counted again") and len(notice) < 700
    assert not file.exists() and (tmp_path / "state.json.damaged").read_text() == text


def test_a_huge_file_is_not_read(tmp_path):
    """A sparse file of a terabyte must not fill memory."""
    file = tmp_path / "state.json"
    with file.open("wb") as huge:
        huge.truncate(2**40)
    assert "more than 64 MiB" in read_state(file, "the count", parse)[1]


def test_a_file_that_cannot_be_moved_is_reported(tmp_path, monkeypatch):
    """A read-only folder must not turn a damaged file into a traceback."""

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "state.json").write_text("")
    monkeypatch.setattr(os, "replace", refuse)
    value, notice = read_state(tmp_path / "state.json", "the count", parse)
    assert value is None and "nor move the file (Permission denied)" in notice


def test_a_folder_in_place_of_the_file_is_reported(tmp_path):
    """Reading a folder raises IsADirectoryError."""
    assert "cannot read" in read_state(tmp_path, "the count", parse)[1]


def test_a_settings_folder_that_cannot_exist_is_no_damage(tmp_path):
    """A container without a home folder printed a notice about each state file."""
    (tmp_path / "file").write_text("")
    assert read_state(tmp_path / "file" / "state.json", "the list", dict) == (None, None)
