"""Recorded commits: the first one stays, and writes are atomic."""

import json
from pathlib import Path

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.hub.pins import Pins
from dflash_mlx.system.settings import settings_folder

A, B = "a" * 40, "b" * 40


def test_the_first_commit_stays(tmp_path: Path) -> None:
    """A second process with a newer commit replaced the recorded one."""
    pins = Pins(tmp_path / "new" / "folder")
    assert pins.get("org/a") is None
    pins.record("org/a", A)
    pins.record("org/a", B)
    pins.record("org/b", B)
    assert json.loads(pins.file.read_text()) == {"org/a": A, "org/b": B}
    assert [file.name for file in pins.folder.iterdir()] == ["revisions.json"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk emptied the file, and every model moved to its newest commit."""
    pins = Pins(tmp_path)
    pins.record("org/a", A)

    def full(*paths: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        pins.record("org/b", B)
    assert pins.get("org/a") == A
    assert [file.name for file in tmp_path.iterdir()] == ["revisions.json"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"org/a": "main"}', '{"org/a": 3}', "[" * 200_000, "\x00"]
)
def test_an_edited_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    """A trailing comma in the file ended in a traceback."""
    pins = Pins(tmp_path)
    pins.file.write_text(text)
    with pytest.raises(BadRequest, match=r"revisions\.json: .*correct or delete it"):
        pins.get("org/a")


def test_the_default_folder_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings folder ignored XDG_CONFIG_HOME."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert settings_folder() == Path("/settings/dflash-mlx")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert settings_folder() == Path.home() / ".config" / "dflash-mlx"
    monkeypatch.setattr("sys.platform", "darwin")
    assert settings_folder() == Path.home() / "Library" / "Application Support" / "dflash-mlx"


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_user_without_a_home_stores_nothing(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """In a container with an unknown user id every command ended in a traceback."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("sys.platform", system)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    pins = Pins(settings_folder())
    assert pins.get("org/a") is None
    with pytest.raises(OSError, match="director"):
        pins.record("org/a", A)
