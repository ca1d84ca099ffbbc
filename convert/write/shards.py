"""Files of weights, written row by row at offsets that the plan fixed beforehand."""

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.plan.weights import PlannedTensor, ShardPlan
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.tensors import chunks, item_bytes, n_bytes, row_count, row_width
from dflash_mlx.convert.workers import run_all
from dflash_mlx.convert.write.pack import packed_rows
from dflash_mlx.convert.write.work_folder import WorkFolder

Piece = tuple[PlannedTensor, int, int, int]
"""An output, the file position of its data, and a range of its rows."""


def write_weights(job: ConversionJob, work: WorkFolder, watch: ProgressCallback) -> None:
    """Write the files of weights that an earlier run did not finish.

    Raises:
        BadCheckpoint: a weight holds NaN or infinity.
        OSError: the disk is full or gone.
    """
    folder = work.path / job.folder
    folder.mkdir(exist_ok=True)
    done = 0

    def advance(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        watch(ConversionProgress("write", done, job.n_source_bytes, job.source.name))

    for number, shard in enumerate(job.plan.shards, 1):
        key = f"{job.folder}/{shard.name}" if job.folder else shard.name
        if key in work.finished:
            advance(sum(n_bytes(item.rows.dtype, item.rows.shape) for item in shard.outputs))
        else:
            work.finish(key, write_shard(shard, folder, advance))
        watch(ConversionProgress("shard", number, len(job.plan.shards), shard.name))


def write_shard(shard: ShardPlan, folder: Path, advance: Callable[[int], None]) -> str:
    """Write one file, wait until it is on the disk, and return its SHA-256 as it reads back.

    `advance` is called with the bytes of the source that were consumed.

    Raises:
        BadCheckpoint: a weight holds NaN or infinity.
        OSError: the disk is full or gone.
    """
    path = folder / shard.name
    header = shard.header()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write(descriptor, header, 0)
        lock = threading.Lock()

        def work(piece: Piece) -> None:
            output, position, start, stop = piece
            for part, rows in zip(output.parts, packed_rows(output, start, stop), strict=True):
                row_bytes = part.n_bytes // max(1, row_count(part.shape))
                place = position + start * row_bytes
                _write(descriptor, np.ascontiguousarray(rows).data, place)
                _send(descriptor, place, rows.nbytes)
                position += part.n_bytes
            with lock:
                width = row_width(output.rows.shape) * item_bytes(output.rows.dtype)
                advance((stop - start) * width)

        run_all(_pieces(shard, len(header)), work)
        sha256 = file_hash(path)  # before the sync, so that the disk works meanwhile
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return sha256


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pieces(shard: ShardPlan, position: int) -> Iterator[Piece]:
    for output in shard.outputs:
        for start, stop in chunks(output.rows):
            yield output, position, start, stop
        position += output.n_bytes


def _send(descriptor: int, position: int, n_bytes: int) -> None:
    """Let the disk begin with a range that was written, so that the last sync has little to do."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, position, n_bytes, os.POSIX_FADV_DONTNEED)


def _write(descriptor: int, raw: bytes | memoryview, position: int) -> None:
    view = memoryview(raw).cast("B")
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
