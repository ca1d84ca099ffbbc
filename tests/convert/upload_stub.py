"""A loopback hub that records created repositories and uploaded files."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.hub.stub import on_loopback


@dataclass
class UploadStub:
    """`created` repositories, `files` by name, `requests` as "METHOD path"."""

    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None
    url: str = ""


@contextmanager
def take_uploads(stub: UploadStub) -> Iterator[UploadStub]:
    """Run the stub on a free port of 127.0.0.1 for the time of the block."""

    class Handler(_Handler):
        hub = stub

    with on_loopback(Handler) as stub.url:
        yield stub


class _Handler(BaseHTTPRequestHandler):
    hub: UploadStub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._noted()
        self._answer(404, {})

    def do_POST(self) -> None:
        path = self._noted()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hub.status is not None:
            return self._answer(self.hub.status, {"error": "not with this token"})
        if path == "/api/repos/create":
            self.hub.created.append(json.loads(body))
            return self._answer(200, {"url": f"{self.hub.url}/owner/model", "id": "x"})
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            kind = {"uploadMode": "regular", "shouldIgnore": False}
            return self._answer(200, {"files": [{"path": name, **kind} for name in names]})
        if "/commit/" in path:
            self._take(body)
            found = {"commitUrl": f"{self.hub.url}/owner/model/commit/1", "commitOid": "1"}
            return self._answer(200, {"success": True, "hookOutput": "", **found})
        return self._answer(200, {"errors": [], "warnings": []})

    def _take(self, body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                content = base64.b64decode(entry["value"]["content"])
                self.hub.files[entry["value"]["path"]] = content

    def _noted(self) -> str:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        return path

    def _answer(self, status: int, table: dict[str, Any]) -> None:
        body = json.dumps(table).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
