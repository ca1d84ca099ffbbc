"""The checkpoint of a run: one file with weights, optimiser state and step counts.

Must not know what a step does: sample order and anchors follow from the seed and the step.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import DFlashError
from dflash_mlx.loading.safetensors import read_header
from dflash_mlx.system.atomic import replace_file
from dflash_mlx.system.foreign import quoted, reading

ArrayTree = dict[str, Any]
"""Nested dictionaries of arrays."""


@dataclass(frozen=True)
class TrainingCounts:
    """Steps taken, tokens predicted, and samples skipped for a gradient that is not finite."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {quoted(value)}")


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
    if not os.path.lexists(file):
        return None
    with reading(file, "the checkpoint", "delete it, and --resume trains from the first step"):
        arrays, metadata = read_arrays(file)
        counts = TrainingCounts(**json.loads(metadata["counts"]))
        return TrainingCheckpoint(
            counts, _subtree("weights", arrays), _subtree("optimizer", arrays)
        )


def read_arrays(file: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file of a run.

    Raises:
        ValueError: the header is malformed.
        RuntimeError: MLX cannot read the file.
    """
    try:
        read_header(file)
    except DFlashError as error:  # its remedy is for downloads
        raise ValueError("its header is damaged") from error
    read: Any = mx.load(str(file), return_metadata=True)
    arrays, metadata = read
    return arrays, metadata


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
