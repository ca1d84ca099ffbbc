"""Measures peak memory and disk of a conversion while downloading, from a hub on loopback.

Writes a sharded bfloat16 qwen3 checkpoint with random weights, serves it from the disk with the
hub's URLs, and converts it to 4 bits with `dflash-mlx convert org/model` in a process of its own.

    python benchmarks/convert_streamed.py --size 1 --shard-mb 250
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from convert_memory import SHAPES, make_checkpoint

COMMIT = "c0ffee" * 6 + "c0ff"
BLOCK_BYTES = 1 << 20
"""Bytes sent at a time."""
POLL_S = 0.02
"""Seconds between two measurements of the disk; a shard of 250 MB is converted in about 2 s."""


@cache
def digest(path: Path) -> str:
    """Return the hash that the hub lists for a file: SHA-256 for weights, git's for others."""
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    content = path.read_bytes()
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """Answers a listing and the files of one folder."""

    folder: Path
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer a listing or a file."""
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            self._listing()
        else:
            self._file(self.folder / path.rpartition("/")[2])

    def _listing(self) -> None:
        siblings = []
        for path in sorted(self.folder.iterdir()):
            entry: dict[str, object] = {"rfilename": path.name, "size": path.stat().st_size}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"sha256": digest(path), "size": path.stat().st_size}
            else:
                entry["blobId"] = digest(path)
            siblings.append(entry)
        body = json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode()
        self._head(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._head(404, 0, {})
        size = path.stat().st_size
        begin, stop = 0, size
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, stop = int(first), min(int(last) + 1, size) if last else size
        headers = {"ETag": f'"{digest(path)}"', "X-Repo-Commit": COMMIT}
        headers["Content-Range"] = f"bytes {begin}-{stop - 1}/{size}"
        self._head(206 if wanted else 200, stop - begin, headers)
        if self.command == "HEAD":
            return None
        with path.open("rb") as file:
            file.seek(begin)
            while begin < stop:
                self.wfile.write(block := file.read(min(BLOCK_BYTES, stop - begin)))
                begin += len(block)
        return None

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()


def used_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk; sparse files count what they hold."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except OSError:  # deleted in between
            continue
        total += status.st_blocks * 512
    return total


def main() -> None:
    """Print peak memory, peak disk and time of one conversion."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="1", choices=list(SHAPES))
    parser.add_argument("--shard-mb", type=int, default=250, help="largest shard in MB")
    parser.add_argument("--folder", type=Path, help="working folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source, work = Path(name) / "source", Path(name) / "work"
        work.mkdir()
        made = make_checkpoint(source, *SHAPES[options.size], shard_bytes=options.shard_mb * 10**6)
        shards = sorted(path.stat().st_size for path in source.glob("*.safetensors"))
        print(f"{made / 1e6:.0f} MB in {len(shards)} shards of at most {shards[-1] / 1e6:.0f} MB")
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("", (Hub,), {"folder": source}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seconds, memory, disk = convert(f"http://127.0.0.1:{server.server_port}", work)
        result = used_bytes(work / "out")
        server.shutdown()
    print(f"peak memory {memory / 1e6:.0f} MB, {seconds:.1f} s")
    print(
        f"peak disk {disk / 1e6:.0f} MB, result {result / 1e6:.0f} MB: "
        f"{(disk - result) / shards[-1]:.2f} of the largest shard beyond the result"
    )


def convert(url: str, work: Path) -> tuple[float, int, int]:
    """Convert; return the time in seconds, peak resident memory and peak disk in bytes."""
    command = "import sys; from dflash_mlx.commands import main; sys.exit(main())"
    arguments = ["convert", "org/model", "-o", str(work / "out"), "--bits", "4", "--no-verify"]
    env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(work / "hub")}
    env["XDG_CONFIG_HOME"] = str(work / "settings")
    started, peak = time.perf_counter(), 0
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], env=env)
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        peak = max(peak, used_bytes(work))
        time.sleep(POLL_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - started, usage.ru_maxrss * unit, peak


if __name__ == "__main__":
    main()
