"""`--upload` asks first and sends the whole folder with the installed huggingface-hub."""

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


def test_without_confirmation_there_is_no_request(folder, hub):
    """Without confirmation there must be no request."""
    asked = []

    def no(question):
        asked.append(question)
        return False

    assert upload_folder(folder, "owner/model", no) is None
    assert hub.requests == []
    assert "owner/model" in asked[0]
    assert "anybody can read" in asked[0]


def test_a_confirmed_upload_sends_every_file(folder, hub):
    """A renamed function of huggingface-hub must fail here."""
    page = upload_folder(folder, "owner/model", lambda question: True)
    assert page == f"{hub.url}/owner/model"
    assert hub.created == [{"name": "model", "organization": "owner"}]
    assert hub.files == snapshot(folder)


def test_a_refusal_names_the_login_command(folder, hub):
    """The usual failure is a missing token; the error must name the command."""
    hub.status = 401
    with pytest.raises(DownloadFailed, match="hf auth login"):
        upload_folder(folder, "owner/model", lambda question: True)


def test_a_folder_without_a_conversion_is_refused(tmp_path, hub):
    """A folder without a conversion must not be published."""
    with pytest.raises(BadRequest, match="not a finished conversion"):
        upload_folder(tmp_path, "owner/model", lambda question: True)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["", "a b/c", "a/b/c", "../x"])
def test_a_bad_name_is_refused_before_converting(tmp_path, name):
    """A wrong repository name was reported only after the conversion."""
    source = draft_folder(tmp_path / "source")
    code = main(["convert", str(source), "-o", str(tmp_path / "out"), "--upload", name])
    assert code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("typed", "sent"), [("", False), ("n\n", False), ("y\n", True)])
def test_only_a_typed_yes_uploads(tmp_path, hub, monkeypatch, capsys, typed, sent):
    """An empty stdin must count as no, and stdout must stay one JSON object."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    source = draft_folder(tmp_path / "source")
    out = tmp_path / "out"
    options = ["--no-verify", "--json", "--upload", "owner/model"]
    assert main(["convert", str(source), "-o", str(out), *options]) == 0
    assert (hub.files == snapshot(out)) is sent
    assert bool(hub.requests) is sent
    printed = capsys.readouterr()
    assert bool(json.loads(printed.out)["uploaded"]) is sent
    assert "anybody can read" in printed.err
