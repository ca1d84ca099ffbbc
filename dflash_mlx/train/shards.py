"""Written samples on disk, a shard at a time: what a run has written is never written again.

A shard is one small gzipped JSON file that appears whole or not at all. What is in shard k
depends on the run's seed and on k, so a run that was stopped writes on as if it never had been.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.train.checkpoint import replace_file
from dflash_mlx.train.samples import Sample


@dataclass(frozen=True)
class Shard:
    """Samples that were kept, how many were dropped and why, and the tokens that were written."""

    samples: tuple[Sample, ...]
    dropped: Counter[str]
    written: int


class Shards:
    """The shards in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        """How many there are, counted from the first without a gap."""
        count = 0
        while self._file(count).exists():
            count += 1
        return count

    def __iter__(self) -> Iterator[Shard]:
        """Yield the shards in their order.

        Raises:
            BadCheckpoint: a file is not one that `append` wrote.
        """
        for index in range(len(self)):
            yield self._read(self._file(index))

    def append(self, shard: Shard) -> None:
        """Write the next shard.

        Raises:
            DFlashError: the disk is full or refuses; the shards before are as they were.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        table = {
            "samples": [[s.prompt, s.answer, s.kind] for s in shard.samples],
            "dropped": dict(sorted(shard.dropped.items())),
            "written": shard.written,
        }
        text = gzip.compress(json.dumps(table, separators=(",", ":")).encode(), mtime=0)
        replace_file(self._file(len(self)), lambda partial: partial.write_bytes(text))

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:05}.json.gz"

    def _read(self, file: Path) -> Shard:
        try:
            table: Any = json.loads(gzip.decompress(file.read_bytes()))
            samples = tuple(
                Sample(tuple(prompt), tuple(answer), kind)
                for prompt, answer, kind in table["samples"]
            )
            return Shard(samples, Counter(table["dropped"]), int(table["written"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(
                f"{file} is no shard of samples ({error}); remove it and those behind it, they are "
                "written again"
            ) from error
