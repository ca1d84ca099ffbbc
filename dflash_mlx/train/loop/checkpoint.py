"""The checkpoint of a run: one file with weights, optimiser state and step counts.

Must not know what a step does: sample order and anchors follow from the seed and the step.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.atomic import replace_file

ArrayTree = dict[str, Any]
"""Nested dictionaries of arrays."""


@dataclass(frozen=True)
class TrainingCounts:
    """Steps taken, tokens predicted, and samples skipped for a gradient that is not finite."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Everything needed to continue a run bit for bit."""

    counts: TrainingCounts
    weights: ArrayTree
    optimizer: ArrayTree


def save_checkpoint(file: Path, checkpoint: TrainingCheckpoint) -> None:
    """Replace `file` by `checkpoint` in one step.

    Raises:
        DFlashError: the file cannot be written; the earlier checkpoint is unchanged.
    """
    arrays = _with_prefix("weights", checkpoint.weights)
    arrays |= _with_prefix("optimizer", checkpoint.optimizer)
    metadata = {"counts": json.dumps(asdict(checkpoint.counts))}
    replace_file(
        file,
        lambda partial: mx.save_safetensors(str(partial), arrays, metadata),
        "free disk space and continue with --resume",
    )


def load_checkpoint(file: Path) -> TrainingCheckpoint | None:
    """Return the checkpoint in `file`, or None if there is no file.

    Raises:
        BadCheckpoint: the file is not one that `save_checkpoint` wrote.
    """
    if not file.exists():
        return None
    try:
        read: Any = mx.load(str(file), return_metadata=True)
        arrays, metadata = read
        counts = TrainingCounts(**json.loads(metadata["counts"]))
        return TrainingCheckpoint(
            counts, _subtree("weights", arrays), _subtree("optimizer", arrays)
        )
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(
            f"{file} is not a checkpoint of a training run ({error}); delete it, and --resume "
            "trains from the first step"
        ) from error


def _with_prefix(part: str, tree: ArrayTree) -> dict[str, mx.array]:
    flat: Any = tree_flatten(tree)
    return {f"{part}.{name}": array for name, array in flat}


def _subtree(part: str, arrays: Mapping[str, mx.array]) -> ArrayTree:
    prefix = f"{part}."
    found = [
        (name.removeprefix(prefix), array)
        for name, array in arrays.items()
        if name.startswith(prefix)
    ]
    tree: Any = tree_unflatten(found)
    return dict(tree)
