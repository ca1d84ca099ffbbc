"""Answers of the hub's address that are not the hub's: each is one line, and nothing is written."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub.constants
import pytest

from dflash_mlx.errors import DownloadFailed
from dflash_mlx.hub import listing
from dflash_mlx.hub.data_sets import file_names
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import resolve
from tests.hub.stub import COMMIT, HubStub, blob_name, on_loopback, serve

FILE = {"rfilename": "config.json", "size": 2, "blobId": "a" * 40}


class Answer(BaseHTTPRequestHandler):
    """Gives one answer to every request."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b""
    location: ClassVar[str] = ""

    def log_message(self, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Send the answer."""
        self.send_response(self.status)
        if self.location:
            self.send_header("Location", self.location)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answer]]:
    """The handler that answers at the hub's address."""

    class Handler(Answer):
        pass

    with on_loopback(Handler) as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield Handler


def listed(**changes: Any) -> Any:
    return {"sha": COMMIT, "siblings": [{**FILE, **changes}]}


NONSENSE = {
    "a login page": b"<html><title>Log in to the train's network</title></html>",
    "nothing": b"",
    "bytes": bytes(range(256)),
    "a text": b'"ok"',
    "a number": b"3",
    "a list": b"[]",
    "no files": json.dumps({"sha": COMMIT}).encode(),
    "files of another type": json.dumps({"sha": COMMIT, "siblings": 5}).encode(),
    "a file that is a text": json.dumps({"sha": COMMIT, "siblings": ["config.json"]}).encode(),
    "no commit": json.dumps({"siblings": []}).encode(),
    "a commit that is a path": json.dumps({"sha": "../../x", "siblings": []}).encode(),
    "a name outside": json.dumps(listed(rfilename="../../.ssh/config.json")).encode(),
    "an absolute name": json.dumps(listed(rfilename="/etc/config.json")).encode(),
    "a name that is a number": json.dumps(listed(rfilename=5)).encode(),
    "a size that is a text": json.dumps(listed(size="2")).encode(),
    "a negative size": json.dumps(listed(size=-1)).encode(),
    "a hash that is a path": json.dumps(listed(blobId="../x")).encode(),
    "nested brackets": b"[" * 200_000,
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_answer_that_is_not_a_listing_is_one_line(
    hub: type[Answer], tmp_path: Path, body: bytes
) -> None:
    """A captive portal answers 200 with HTML, which ended in a traceback."""
    hub.body = body
    for ask in (lambda: resolve("org/model", pins=Pins(tmp_path)), lambda: file_names("org/data")):
        with pytest.raises(DownloadFailed, match="check HF_ENDPOINT") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
    assert not (tmp_path / "cache").exists()


def test_a_redirect_in_a_circle_is_one_line(hub: type[Answer], tmp_path: Path) -> None:
    """A portal that redirects to itself."""
    hub.status, hub.location = 302, "/again"
    with pytest.raises(DownloadFailed, match="cannot be reached") as caught:
        resolve("org/model", pins=Pins(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_huge_listing_is_refused(
    hub: type[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endless answer filled the memory."""
    monkeypatch.setattr(listing, "_MAX_BYTES", 10**6)
    hub.body = b" " * (2 * 10**6)
    with pytest.raises(DownloadFailed, match="more than 1 MB"):
        resolve("org/model", pins=Pins(tmp_path))


def test_a_file_that_is_longer_than_listed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without end filled the disk before its hash was compared."""
    real = blob_name
    with serve(HubStub({"org/model": {"config.json": b"{}", "model.safetensors": b"12"}})) as stub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", stub.url)
        template = stub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        sha, files = listing.list_files("org/model", None)
        assert (sha, files[0].digest) == (COMMIT, real("config.json", b"{}"))
        monkeypatch.setattr("dflash_mlx.hub.resolve.list_files", lambda *given: (sha, files))
        stub.repositories["org/model"]["config.json"] = b"{}" + b" " * 10**6
        with pytest.raises(DownloadFailed, match=r"more than the 2 bytes"):
            resolve("org/model", pins=Pins(tmp_path))
    assert not list((tmp_path / "cache").rglob("config.json"))
