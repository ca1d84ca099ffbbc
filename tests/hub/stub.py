"""A hub on loopback for tests: listings and files of one commit, with a request log."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class HubStub:
    """The stub's content and its faults; `requests` lists "METHOD path"."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commit: str = COMMIT
    gated: set[str] = field(default_factory=set)
    break_after: dict[str, list[int]] = field(default_factory=dict)
    """File name to the body bytes that each of the next requests sends before it disconnects."""
    damaged: set[str] = field(default_factory=set)
    status: int | None = None
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(stub: HubStub) -> Iterator[HubStub]:
    """Run the stub on a free port of 127.0.0.1 inside the block."""

    class Handler(_Handler):
        hub = stub

    with on_loopback(Handler) as stub.url:
        yield stub


@contextmanager
def on_loopback(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run `handler` on a free port of 127.0.0.1 inside the block and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def blob_name(name: str, content: bytes) -> str:
    """Return SHA-256 for LFS files and git's blob hash for others."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubStub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path.partition('?')[0]}")
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.hub.status is not None:
            return self._refuse(self.hub.status)
        if parts[:2] == ["api", "models"]:
            return self._listing("/".join(parts[2:4]), parts[5] if len(parts) > 5 else None)
        return self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def _listing(self, repository: str, revision: str | None) -> None:
        if repository not in self.hub.repositories:
            return self._refuse(401 if repository.startswith("private/") else 404, "RepoNotFound")
        if revision not in (None, "main", self.hub.commit):
            return self._refuse(404, "RevisionNotFound")
        siblings = []
        for name, content in self.hub.repositories[repository].items():
            entry: dict[str, object] = {
                "rfilename": name,
                "size": len(content),
                "blobId": hashlib.sha1(name.encode()).hexdigest(),
            }
            if name.endswith(".safetensors"):
                entry["lfs"] = {
                    "sha256": blob_name(name, content),
                    "size": len(content),
                    "pointerSize": 100,
                }
            else:
                entry["blobId"] = blob_name(name, content)
            siblings.append(entry)
        body = {"id": repository, "sha": self.hub.commit, "siblings": siblings}
        return self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: str, revision: str, name: str) -> None:
        if repository in self.hub.gated:
            return self._refuse(403 if self.headers.get("authorization") else 401, "GatedRepo")
        content = self.hub.repositories[repository][name]
        headers = {"ETag": f'"{blob_name(name, content)}"', "X-Repo-Commit": self.hub.commit}
        if name in self.hub.damaged:
            content = bytes(len(content))
        begin, size = 0, len(content)
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append(wanted)
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, content = int(first), content[: int(last) + 1] if last else content
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{size}"
        return self._answer(206 if wanted else 200, content[begin:], headers, name)

    def _refuse(self, status: int, code: str = "") -> None:
        self._answer(status, b"{}", {"X-Error-Code": code} if code else {})

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], name: str | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        breaks = self.hub.break_after.get(name or "")
        if breaks:
            self.wfile.write(body[: breaks.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(body)
