"""Progress of a conversion while downloading: bytes, throughput, and time left."""

import threading
import time
from collections.abc import Callable

from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.remote_shards import RemoteShards


class StreamingProgress:
    """Reports download and conversion of all shards, with throughput and time left."""

    def __init__(self, job: ConversionJob, shards: RemoteShards, watch: ProgressCallback) -> None:
        self._job = job
        self._watch = watch
        self._remote = {name: file.n_bytes for name, file in shards.remote.items()}
        self._downloaded = dict.fromkeys(self._remote, 0)
        self._converted = 0
        self._skipped = 0
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def downloading(self, name: str) -> Callable[[int, int], None]:
        """Return the callback for the download of one shard."""
        started, before = time.monotonic(), self._downloaded[name]

        def report(done: int, total: int) -> None:
            seconds = time.monotonic() - started
            self._downloaded[name] = done
            speed = (done - before) / seconds if seconds > 0 else 0.0
            self._report("download", sum(self._downloaded.values()), self._total(), speed)

        return report

    def advance(self, n_bytes: int) -> None:
        """Report that source bytes were converted."""
        with self._lock:
            self._converted += n_bytes
        self._report("write", self._converted, self._job.n_source_bytes)

    def skip(self, name: str, n_bytes: int) -> None:
        """Report a shard that an earlier run finished."""
        self._downloaded[name] = self._remote.get(name, 0)
        self._skipped += self._remote.get(name, 0) + n_bytes
        self.advance(n_bytes)

    def shard_finished(self, number: int, count: int, name: str) -> None:
        """Report a finished output file."""
        self._watch(ConversionProgress("shard", number, count, name))

    def _total(self) -> int:
        return sum(self._remote.values())

    def _report(self, phase: str, done: int, total: int, speed: float | None = None) -> None:
        both = sum(self._downloaded.values()) + self._converted - self._skipped
        left = self._total() + self._job.n_source_bytes - self._skipped - both
        seconds = time.monotonic() - self._started
        remaining = seconds * left / both if both > 0 else None
        name = self._job.source.name
        if phase == "download":
            self._watch(ConversionProgress("download", done, total, name, speed, remaining))
        else:
            self._watch(ConversionProgress("write", done, total, name, None, remaining))
