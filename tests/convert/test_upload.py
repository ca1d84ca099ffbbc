"""`--upload`: asked first, the folder whole, through the installed huggingface-hub's own calls."""

import io
import json

import pytest

from dflash_mlx.commands import main
from dflash_mlx.convert.upload import upload_folder
from dflash_mlx.errors import BadRequest, DownloadFailed
from tests.convert.checkpoints import draft_folder, run, snapshot
from tests.convert.upload_stub import UploadStub, take_uploads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished conversion."""
    place = tmp_path_factory.mktemp("upload")
    run(draft_folder(place / "source"), place / "out")
    return place / "out"


@pytest.fixture
def hub(monkeypatch):
    from huggingface_hub import constants

    with take_uploads(UploadStub()) as stub:
        monkeypatch.setattr(constants, "ENDPOINT", stub.url)
        yield stub


def test_a_no_reaches_nobody(folder, hub):
    """What is public once cannot be taken back."""
    asked = []

    def no(question):
        asked.append(question)
        return False

    assert upload_folder(folder, "somebody/model", no) is None
    assert hub.requests == []
    assert "somebody/model" in asked[0]
    assert "anybody can read" in asked[0]


def test_a_yes_sends_every_file_as_it_is(folder, hub):
    """A function of the hub's package that was renamed would show on the day of the release."""
    page = upload_folder(folder, "somebody/model", lambda question: True)
    assert page == f"{hub.url}/somebody/model"
    assert hub.created == [{"name": "model", "organization": "somebody"}]
    assert hub.files == snapshot(folder)


def test_a_refusal_says_to_log_in(folder, hub):
    """The commonest failure is a missing token, met after hours of converting."""
    hub.status = 401
    with pytest.raises(DownloadFailed, match="hf auth login"):
        upload_folder(folder, "somebody/model", lambda question: True)


def test_a_folder_that_is_no_conversion_is_refused(tmp_path, hub):
    """Whatever lies in a folder by mistake would be public."""
    with pytest.raises(BadRequest, match="not a finished conversion"):
        upload_folder(tmp_path, "somebody/model", lambda question: True)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["", "a b/c", "a/b/c", "../x"])
def test_a_bad_name_is_refused_before_hours_of_converting(tmp_path, name):
    """A typing error that shows at the very end costs a night."""
    source = draft_folder(tmp_path / "source")
    code = main(["convert", str(source), "-o", str(tmp_path / "out"), "--upload", name])
    assert code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("typed", "sent"), [("", False), ("n\n", False), ("y\n", True)])
def test_only_a_yes_that_was_typed_uploads(tmp_path, hub, monkeypatch, capsys, typed, sent):
    """A script that runs at night has not said yes, and its stdout is still one JSON object."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    source = draft_folder(tmp_path / "source")
    out = tmp_path / "out"
    options = ["--no-verify", "--json", "--upload", "somebody/model"]
    assert main(["convert", str(source), "-o", str(out), *options]) == 0
    assert (hub.files == snapshot(out)) is sent
    assert bool(hub.requests) is sent
    shown = capsys.readouterr()
    assert bool(json.loads(shown.out)["uploaded"]) is sent
    assert "anybody can read" in shown.err
