"""Where a run stands, on disk: enough to go on bit for bit, replaced in one step.

A checkpoint is one file. Which sample comes next and where its blocks begin follow from the
seed and the step, so weights, moments and counts are all there is to keep.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import BadCheckpoint, DFlashError

Tree = dict[str, Any]
"""Arrays by name, nested."""


@dataclass(frozen=True)
class Counts:
    """What a run has done: steps taken, tokens predicted, samples left out for a NaN."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """Counts with trained weights and the optimiser's state."""

    counts: Counts
    weights: Tree
    optimizer: Tree


def save_checkpoint(file: Path, checkpoint: Checkpoint) -> None:
    """Write `file` so that it is either the old checkpoint or the new one, whatever happens.

    Raises:
        DFlashError: it could not be written; the old one is as it was.
    """
    arrays = _named("weights", checkpoint.weights) | _named("optimizer", checkpoint.optimizer)
    facts = {"counts": json.dumps(asdict(checkpoint.counts))}
    replace_file(file, lambda partial: mx.save_safetensors(str(partial), arrays, facts))


def load_checkpoint(file: Path) -> Checkpoint | None:
    """Return the checkpoint in `file`, None where there is none.

    Raises:
        BadCheckpoint: the file is not one that `save_checkpoint` wrote.
    """
    if not file.exists():
        return None
    try:
        read: Any = mx.load(str(file), return_metadata=True)
        arrays, facts = read
        counts = Counts(**json.loads(facts["counts"]))
        return Checkpoint(counts, _tree("weights", arrays), _tree("optimizer", arrays))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(
            f"{file} is no checkpoint of a training run ({error}); remove it to begin anew"
        ) from error


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `file`, then put it in its place.

    Raises:
        DFlashError: the disk is full or refuses; what was there before is as it was.
    """
    partial = file.with_name(f".partial-{file.name}")
    try:
        write(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, file)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise DFlashError(
            f"{file} could not be written ({error}); what was there before is kept. "
            "Free some disk space and go on with --resume"
        ) from error


def _named(part: str, tree: Tree) -> dict[str, mx.array]:
    flat: Any = tree_flatten(tree)
    return {f"{part}.{name}": array for name, array in flat}


def _tree(part: str, arrays: Mapping[str, mx.array]) -> Tree:
    prefix = f"{part}."
    found = [
        (name.removeprefix(prefix), array)
        for name, array in arrays.items()
        if name.startswith(prefix)
    ]
    tree: Any = tree_unflatten(found)
    return dict(tree)
