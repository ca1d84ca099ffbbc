"""Compares the written tensors with the plan and with the source, both read from the disk."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from dflash_mlx.convert import safetensors
from dflash_mlx.convert.plan.files import PlannedTensor
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.plan.packed_source import DequantizedRows
from dflash_mlx.convert.tensors import FLOATS, Rows, chunks, item_bytes, numbers, row_width, to_mlx
from dflash_mlx.convert.workers import run_all
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.foreign import shorten


@dataclass(frozen=True)
class TensorError:
    """Difference between a tensor and its source.

    `relative` is the root mean square of the difference divided by that of the source;
    `largest` is the largest absolute difference of one value.
    """

    name: str
    relative: float
    largest: float


def check_names(job: ConversionJob, folder: Path) -> dict[str, Rows]:
    """Return the written tensors after checking them against the plan.

    Raises:
        BadCheckpoint: names, types or shapes differ from the plan: another program changed them.
    """
    written: dict[str, Rows] = {}
    for shard in job.plan.shards:
        written |= safetensors.read_file(folder / shard.name)
    wanted = {part.name: part for output in job.plan.outputs for part in output.parts}
    for name in sorted(wanted.keys() | written.keys()):
        part, rows = wanted.get(name), written.get(name)
        if not part or not rows or (part.dtype, part.shape) != (rows.dtype, rows.shape):
            raise BadCheckpoint(
                f"{folder}: {shorten(name)} has the shape {rows and rows.shape} and needs "
                f"{part and part.shape}; another program changed the folder, convert again with "
                "--force"
            )
    return written


def piece_meter(
    job: ConversionJob, folder: Path
) -> Callable[[PlannedTensor, int, int], tuple[float, float, float]]:
    """Return a function that compares written rows of a planned tensor with the source.

    It takes the tensor, the first row and the row after the last, and returns the sums of squares
    of difference and source, and the largest difference. The files in `folder` need headers.
    """
    written: dict[str, Rows] = {}
    lock = threading.Lock()

    def measure(output: PlannedTensor, start: int, stop: int) -> tuple[float, float, float]:
        with lock:
            if not written:
                written.update(check_names(job, folder))
        return _difference(output, _result_rows(output, written), start, stop, job.source.name)

    return measure


def combined_errors(
    pieces: Iterable[tuple[PlannedTensor, tuple[float, float, float]]],
) -> list[TensorError]:
    """Return the error of every tensor from the results of a `piece_meter`."""
    sums: dict[str, list[tuple[float, float, float]]] = {}
    for output, found in pieces:
        sums.setdefault(output.name, []).append(found)
    return [_error(name, parts) for name, parts in sums.items()]


def measure_errors(
    job: ConversionJob, written: dict[str, Rows], advance: Callable[[int], None]
) -> list[TensorError]:
    """Return the error of every tensor, in the order of the plan.

    `advance` is called with the number of source bytes that were compared.

    Raises:
        BadCheckpoint: a tensor that was copied reads back differently.
    """
    sums: dict[str, list[tuple[float, float, float]]] = {
        output.name: [] for output in job.plan.outputs
    }
    lock = threading.Lock()

    def work(piece: tuple[PlannedTensor, Rows, int, int]) -> None:
        output, result, start, stop = piece
        found = _difference(output, result, start, stop, job.source.name)
        with lock:
            sums[output.name].append(found)
            advance((stop - start) * row_width(output.rows.shape) * item_bytes(output.rows.dtype))

    run_all(_pieces(job, written), work)
    return [_error(name, parts) for name, parts in sums.items()]


def _pieces(
    job: ConversionJob, written: dict[str, Rows]
) -> Iterator[tuple[PlannedTensor, Rows, int, int]]:
    for output in job.plan.outputs:
        result = _result_rows(output, written)
        for start, stop in chunks(output.rows):
            yield output, result, start, stop


def _result_rows(output: PlannedTensor, written: dict[str, Rows]) -> Rows:
    """Return the written values of a planned tensor, dequantized."""
    if output.quantization is None:
        return written[output.name]
    return DequantizedRows(
        written[output.name],
        written[f"{output.path}.scales"],
        written.get(f"{output.path}.biases"),
        output.quantization.settings(),
        "F32",
    )


def _difference(
    output: PlannedTensor, result: Rows, start: int, stop: int, source: str
) -> tuple[float, float, float]:
    """Return the sums of squares of difference and source, and the largest difference."""
    ours, theirs = output.rows.read(start, stop), result.read(start, stop)
    if output.rows.dtype == result.dtype and output.quantization is None:
        if ours.tobytes() != theirs.tobytes():
            raise BadCheckpoint(
                f"{source}: {output.name} reads back differently between rows {start} and {stop}; "
                "the disk fails or is full, check it and convert again with --force"
            )
        if output.rows.dtype not in FLOATS:
            return 0.0, 0.0, 0.0
    exact = to_mlx(ours, output.rows.dtype).astype(mx.float32)
    off = to_mlx(theirs, result.dtype).astype(mx.float32) - exact
    squares = [mx.square(off).sum(), mx.square(exact).sum(), mx.abs(off).max()]
    difference, size, largest = numbers(squares)
    return difference, size, largest


def _error(name: str, parts: list[tuple[float, float, float]]) -> TensorError:
    # fsum is independent of the order in which threads deliver the parts
    difference = math.fsum(part[0] for part in parts)
    size = math.fsum(part[1] for part in parts)
    largest = max((part[2] for part in parts), default=0.0)
    return TensorError(name, math.sqrt(difference / size) if size else 0.0, largest)
