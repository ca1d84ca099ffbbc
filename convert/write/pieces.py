"""Pieces of planned tensors: row ranges with the position of their output and their source files.

It must not know how pieces are written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dflash_mlx.convert.plan.computed import ComputedRows
from dflash_mlx.convert.plan.files import PlannedTensor, ShardPlan, WeightsPlan
from dflash_mlx.convert.plan.packed_source import DequantizedRows
from dflash_mlx.convert.safetensors import StoredRows
from dflash_mlx.convert.tensors import (
    JoinedRows,
    RegroupedRows,
    Rows,
    chunks,
    item_bytes,
    row_count,
    row_width,
)


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a planned tensor.

    Args:
        output: the planned tensor.
        shard: name of the output file.
        position: offset of the tensor's data in the output file, in bytes.
        start: first row.
        stop: row after the last.
    """

    output: PlannedTensor
    shard: str
    position: int
    start: int
    stop: int

    @property
    def n_source_bytes(self) -> int:
        """Bytes of the rows before conversion."""
        rows = self.output.rows
        return (self.stop - self.start) * row_width(rows.shape) * item_bytes(rows.dtype)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield offset and length of the rows in the output file, for each part."""
        position = self.position
        for part in self.output.parts:
            row_bytes = part.n_bytes // max(1, row_count(part.shape))
            yield position + self.start * row_bytes, (self.stop - self.start) * row_bytes
            position += part.n_bytes


def shard_pieces(shard: ShardPlan) -> Iterator[Piece]:
    """Yield the pieces of one output file: chunks of rows, in order."""
    position = len(shard.header())
    for output in shard.outputs:
        for start, stop in chunks(output.rows):
            yield Piece(output, shard.name, position, start, stop)
        position += output.n_bytes


def pieces_by_file(plan: WeightsPlan) -> Iterator[tuple[Piece, tuple[StoredRows, ...]]]:
    """Yield pieces that read from one source file each, where possible, and what they read.

    Chunks are split at the borders between source files. The split depends on the plan only, so
    it is the same in every run. The tensors are the stored tensors of the source.
    """
    for shard in plan.shards:
        for piece in shard_pieces(shard):
            for start, stop, tensors in _split(piece.output.rows, piece.start, piece.stop):
                yield replace(piece, start=start, stop=stop), tensors


def _split(rows: Rows, start: int, stop: int) -> Iterator[tuple[int, int, tuple[StoredRows, ...]]]:
    """Yield row ranges that read from one file each, or have a single row."""
    tensors = tuple(dict.fromkeys(stored_tensors(rows, start, stop)))
    if len(file_names(tensors)) <= 1 or stop - start == 1:
        yield start, stop, tensors
        return
    middle = (start + stop) // 2
    yield from _split(rows, start, middle)
    yield from _split(rows, middle, stop)


def file_names(tensors: Iterable[StoredRows]) -> frozenset[str]:
    """Return the names of the source files that hold `tensors`."""
    return frozenset(tensor.file.path.name for tensor in tensors)


def stored_tensors(rows: Rows, start: int, stop: int) -> Iterator[StoredRows]:
    """Yield the stored tensors that rows `start` to `stop` are read from."""
    if isinstance(rows, StoredRows):
        yield rows
    elif isinstance(rows, JoinedRows):
        before = 0
        for run in rows.runs:
            first, last = max(start - before, 0), min(stop - before, run.count)
            if first < last:
                begin = run.start + first * run.step
                yield from stored_tensors(run.rows, begin, run.start + (last - 1) * run.step + 1)
            before += run.count
    elif isinstance(rows, RegroupedRows):
        yield from stored_tensors(rows.rows, *rows.inner_range(start, stop))
    elif isinstance(rows, DequantizedRows):
        for part in (rows.weight, rows.scales, rows.biases):
            if part is not None:
                yield from stored_tensors(part, start, stop)
    elif isinstance(rows, ComputedRows):
        for tensor in rows.inputs:
            yield from stored_tensors(tensor, 0, row_count(tensor.shape))
    else:
        raise TypeError(f"rows of type {type(rows).__name__} have no known files")
