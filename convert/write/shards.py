"""Writes the planned files of weights: reads rows, casts, quantizes, and writes at fixed offsets.

It must not know how the files were planned.
"""

import os
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from dflash_mlx.convert.plan.files import PlannedTensor, ShardPlan
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.quantize import quantize_rows
from dflash_mlx.convert.tensors import (
    Carrier,
    from_mlx,
    is_finite,
    mlx_dtype,
    n_bytes,
    to_mlx,
)
from dflash_mlx.convert.workers import run_all
from dflash_mlx.convert.write.pieces import Piece, shard_pieces
from dflash_mlx.convert.write.work_folder import WorkFolder, file_hash
from dflash_mlx.errors import BadCheckpoint


def write_weights(job: ConversionJob, work: WorkFolder, watch: ProgressCallback) -> None:
    """Write the files of weights that an earlier run did not finish.

    Raises:
        BadCheckpoint: a weight holds NaN or infinity.
        OSError: the disk is full or fails.
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
            work.finish(key, write_shard(shard, folder, advance, job.source.name))
        watch(ConversionProgress("shard", number, len(job.plan.shards), shard.name))


def write_shard(shard: ShardPlan, folder: Path, advance: Callable[[int], None], source: str) -> str:
    """Write one file, wait until it is on the disk, and return its SHA-256 as read back.

    `advance` is called with the number of source bytes that were processed; `source` is the
    source's name in errors.

    Raises:
        BadCheckpoint: a weight holds NaN or infinity.
        OSError: the disk is full or fails.
    """
    path = folder / shard.name
    header = shard.header()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_at(descriptor, header, 0)
        lock = threading.Lock()

        def work(piece: Piece) -> None:
            write_piece(descriptor, piece, source)
            with lock:
                advance(piece.n_source_bytes)

        run_all(shard_pieces(shard), work)
        sha256 = file_hash(path)  # before the sync, so that the disk writes meanwhile
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return sha256


def write_piece(descriptor: int, piece: Piece, source: str) -> int:
    """Write the rows of a piece into its output file; return the CRC-32 of what was written."""
    checksum = 0
    parts = stored_rows(piece.output, piece.start, piece.stop, source)
    for (offset, _), rows in zip(piece.ranges(), parts, strict=True):
        data = np.ascontiguousarray(rows).data.cast("B")
        write_at(descriptor, data, offset)
        _start_writeback(descriptor, offset, rows.nbytes)
        checksum = zlib.crc32(data, checksum)
    return checksum


def stored_rows(output: PlannedTensor, start: int, stop: int, source: str) -> list[Carrier]:
    """Return rows `start` to `stop` of every part of an output, cast and quantized.

    Raises:
        BadCheckpoint: a value is NaN or infinite, or exceeds the range of the output's type.
    """
    values = output.rows.read(start, stop)
    if not is_finite(values, output.rows.dtype):
        raise BadCheckpoint(
            f"{source}: {output.name} contains NaN or infinity between rows {start} and {stop}; "
            "the checkpoint is damaged, download it again or ask its author"
        )
    if output.quantization is None and output.dtype == output.rows.dtype:
        return [values]
    array = to_mlx(values, output.rows.dtype).astype(mlx_dtype(output.dtype))
    arrays: Sequence[mx.array] = (array,)
    if output.quantization:
        arrays = quantize_rows(array, output.quantization.settings())
    parts = [from_mlx(part) for part in arrays]
    for part, made in zip(output.parts, parts, strict=True):
        if not is_finite(made, part.dtype):
            raise BadCheckpoint(
                f"{source}: {output.name} has values outside the range of {part.dtype}; use "
                "--dtype bfloat16"
            )
    return parts


def _start_writeback(descriptor: int, position: int, n_bytes: int) -> None:
    """Start writing a range to the disk, so that the final sync is short."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, position, n_bytes, os.POSIX_FADV_DONTNEED)


def write_at(descriptor: int, raw: bytes | memoryview, position: int) -> None:
    """Write all bytes at a position of a file."""
    view = memoryview(raw).cast("B")
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written
