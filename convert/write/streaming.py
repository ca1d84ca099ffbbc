"""Converts a source on the hub one shard at a time: download, write its pieces, delete it.

Output files have their full size from the start, and every piece is written at its final
position. It must not know how the errors of a piece are measured.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.convert.plan.files import PlannedTensor
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ProgressCallback
from dflash_mlx.convert.safetensors import File, StoredRows
from dflash_mlx.convert.sources.remote_shards import RemoteShards
from dflash_mlx.convert.tensors import n_bytes
from dflash_mlx.convert.workers import run_all
from dflash_mlx.convert.write.pieces import Piece, file_names, pieces_by_file
from dflash_mlx.convert.write.shards import write_at, write_piece
from dflash_mlx.convert.write.streaming_progress import StreamingProgress
from dflash_mlx.convert.write.work_folder import WorkFolder, file_hash, sync

PieceError = tuple[float, float, float]
"""Sums of squares of difference and source, and the largest difference, of one piece."""
MeasurePiece = Callable[[PlannedTensor, int, int], PieceError]
"""Compares rows of the output with the source; given a planned tensor, first and last row."""

_SPILLED = "tensors of several shards"
"""Journal entry of the pieces that read from more than one shard."""


@dataclass(frozen=True)
class _Record:
    """What the journal holds about a written piece."""

    checksum: int
    error: PieceError


class StreamedConversion:
    """The conversion of one job whose source is downloaded by shards."""

    def __init__(
        self, job: ConversionJob, work: WorkFolder, watch: ProgressCallback, measure: MeasurePiece
    ) -> None:
        assert job.source.shards
        self.job = job
        self.work = work
        self.folder = work.path / job.folder
        self.shards: RemoteShards = job.source.shards
        self.measure = measure
        self.progress = StreamingProgress(job, self.shards, watch)
        self.by_file: dict[str, list[Piece]] = {name: [] for name in sorted(self.shards.files)}
        self.spilling: list[Piece] = []
        self.spilled: dict[str, set[StoredRows]] = {name: set() for name in self.by_file}
        for piece, tensors in pieces_by_file(job.plan):
            files = file_names(tensors)
            if len(files) == 1:
                self.by_file[next(iter(files))].append(piece)
                continue
            self.spilling.append(piece)
            for tensor in tensors:
                self.spilled[tensor.file.path.name].add(tensor)

    def run(self) -> list[tuple[PlannedTensor, PieceError]]:
        """Write all files of weights; return the error of every piece, in a fixed order.

        A shard counts as done when its pieces are on the disk and the journal says so; it is
        deleted after that. Killed at any point, the next run repeats at most one shard.

        Raises:
            BadCheckpoint: a weight holds NaN or infinity, or a shard differs from its header.
            DownloadFailed: the hub refuses or cannot be reached.
            OSError: the disk is full or fails.
        """
        records: dict[str, list[_Record]] = {}
        with ExitStack() as stack:
            outputs = self._open_outputs(stack)
            for name in self.by_file:
                resumed = self._resumed(name, outputs)
                records[name] = self._convert(name, outputs) if resumed is None else resumed
                self.work.delete_download(self.shards, name)
            if self.spilling:
                resumed = self._resumed(_SPILLED, outputs)
                records[_SPILLED] = self._finish_spilled(outputs) if resumed is None else resumed
        for number, shard in enumerate(self.job.plan.shards, 1):
            key = self._key(shard.name)
            if key not in self.work.finished:
                self.work.finish(key, file_hash(self.folder / shard.name))
            self.progress.shard_finished(number, len(self.job.plan.shards), shard.name)
        pieces = [*(piece for group in self.by_file.values() for piece in group), *self.spilling]
        ordered = [record for group in records.values() for record in group]
        return [(p.output, r.error) for p, r in zip(pieces, ordered, strict=True)]

    def _key(self, name: str) -> str:
        return f"{self.job.folder}/{name}" if self.job.folder else name

    def _open_outputs(self, stack: ExitStack) -> dict[str, int]:
        """Return a descriptor per output file, each with its header and its full size."""
        self.folder.mkdir(exist_ok=True)
        outputs = {}
        for shard in self.job.plan.shards:
            flags = os.O_RDWR | os.O_CREAT
            descriptor = os.open(self.folder / shard.name, flags, 0o644)
            stack.callback(os.close, descriptor)
            header = shard.header()
            os.ftruncate(descriptor, len(header) + sum(item.n_bytes for item in shard.outputs))
            write_at(descriptor, header, 0)
            outputs[shard.name] = descriptor
        return outputs

    def _convert(self, name: str, outputs: Mapping[str, int]) -> list[_Record]:
        """Download one shard, write its pieces, and record them in the journal."""
        if not self.by_file[name] and not self.spilled[name]:
            return []  # its tensors are not part of the model
        path = self.shards.fetch(name, self.work.downloads, self.progress.downloading(name))
        self.shards.files[name].attach(path)
        try:
            spill = self._spill(name)
            records = self._write(self.by_file[name], outputs)
            self._record(name, records, spill)
        finally:
            self.shards.files[name].detach()
        return records

    def _finish_spilled(self, outputs: Mapping[str, int]) -> list[_Record]:
        """Write the pieces that read from several shards, from copies of their tensors."""
        for name, tensors in self.spilled.items():
            if tensors:
                self.shards.files[name].attach(self._spill_path(name))
        try:
            records = self._write(self.spilling, outputs)
        finally:
            for file in self.shards.files.values():
                file.detach()
        self._record(_SPILLED, records, 0)
        return records

    def _write(self, pieces: Sequence[Piece], outputs: Mapping[str, int]) -> list[_Record]:
        """Write pieces, wait until they are on the disk, then measure their errors."""
        checksums: dict[int, int] = {}
        errors: dict[int, PieceError] = {}

        def write(item: tuple[int, Piece]) -> None:
            number, piece = item
            checksums[number] = write_piece(outputs[piece.shard], piece, self.job.source.name)
            self.progress.advance(piece.n_source_bytes)

        def compare(item: tuple[int, Piece]) -> None:
            number, piece = item
            errors[number] = self.measure(piece.output, piece.start, piece.stop)

        run_all(iter(enumerate(pieces)), write)
        for name in {piece.shard for piece in pieces}:
            os.fsync(outputs[name])
        run_all(iter(enumerate(pieces)), compare)
        return [_Record(checksums[number], errors[number]) for number in range(len(pieces))]

    def _spill_path(self, name: str) -> Path:
        return self.work.spill / self._key(name)

    def _spill(self, name: str) -> int:
        """Copy the tensors that other shards' pieces need, and return their CRC-32.

        The copy is a sparse file with the offsets of the shard.
        """
        if not self.spilled[name]:
            return 0
        path = self._spill_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = self.shards.files[name]
        with path.open("wb") as copy:
            copy.truncate(file.size)
            for tensor in self.spilled[name]:
                for position, length in _blocks(tensor):
                    write_at(copy.fileno(), file.read(position, length), position)
            os.fsync(copy.fileno())
        sync(path.parent)
        return self._spill_checksum(name)

    def _spill_checksum(self, name: str) -> int:
        """Return the CRC-32 of the copied tensors of a shard; 0 if there are none."""
        checksum, path = 0, self._spill_path(name)
        if self.spilled[name]:
            copy = File(path)
            for tensor in sorted(self.spilled[name], key=lambda tensor: tensor.position):
                for position, length in _blocks(tensor):
                    checksum = zlib.crc32(copy.read(position, length), checksum)
        return checksum

    def _record(self, name: str, records: Sequence[_Record], spill: int) -> None:
        table = {"spill": spill, "pieces": [[item.checksum, *item.error] for item in records]}
        self.work.record(self._key(name), json.dumps(table))

    def _resumed(self, name: str, outputs: Mapping[str, int]) -> list[_Record] | None:
        """Return the records of a shard that an earlier run finished, if its pieces are intact."""
        pieces = self.spilling if name == _SPILLED else self.by_file[name]
        text = self.work.records.get(self._key(name))
        found = _parsed(text, len(pieces)) if text is not None else None
        if found is None:
            return None
        spill, records = found
        whole = all(self._key(item.name) in self.work.finished for item in self.job.plan.shards)
        if not whole:
            for piece, record in zip(pieces, records, strict=True):
                if _checksum(outputs[piece.shard], piece) != record.checksum:
                    return None
            needs_spill = name != _SPILLED and self.spilled[name] and not self._spilled_done()
            if needs_spill and not self._spill_intact(name, spill):
                return None
        self.progress.skip(name, sum(piece.n_source_bytes for piece in pieces))
        return records

    def _spilled_done(self) -> bool:
        return self._key(_SPILLED) in self.work.records

    def _spill_intact(self, name: str, expected: int) -> bool:
        path, size = self._spill_path(name), self.shards.files[name].size
        if not path.is_file() or path.stat().st_size != size:
            return False
        return self._spill_checksum(name) == expected


_BLOCK_BYTES = 8 << 20
"""Bytes copied or hashed at a time, as for a chunk of rows."""


def _blocks(tensor: StoredRows) -> list[tuple[int, int]]:
    """Return position and length of the blocks of a stored tensor."""
    size = n_bytes(tensor.dtype, tensor.shape)
    return [
        (tensor.position + start, min(_BLOCK_BYTES, size - start))
        for start in range(0, size, _BLOCK_BYTES)
    ]


def _checksum(descriptor: int, piece: Piece) -> int:
    """Return the CRC-32 of a piece as it is in its output file."""
    checksum = 0
    for offset, length in piece.ranges():
        checksum = zlib.crc32(os.pread(descriptor, length, offset), checksum)
    return checksum


def _parsed(text: str, n_pieces: int) -> tuple[int, list[_Record]] | None:
    """Return the CRC-32 of the copied tensors and the records of a journal entry, if it is valid.

    The journal is a file that anything may have damaged, so every value is checked.
    """
    try:
        table = json.loads(text)
        spill, rows = table["spill"], table["pieces"]
        records = [_Record(row[0], (row[1], row[2], row[3])) for row in rows]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        return None
    valid = type(spill) is int and len(records) == n_pieces
    for record in records:
        valid = valid and type(record.checksum) is int
        valid = valid and all(type(number) is float and number >= 0 for number in record.error)
    return (spill, records) if valid else None
