"""Counts launches: one threadgroup per class, multiplied by the size of the class."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from dflash_mlx.metal.build import Launch
from tests.metal.count.classes import Triple, edge_classes
from tests.metal.device import WrongBehaviour
from tests.metal.executor import Counts, Executor, Objects
from tests.metal.executor.lower import without_comments
from tests.metal.executor.source import generate

LINE = 64


@dataclass(frozen=True)
class Work:
    """Work of launches. `group_bytes`: 64-byte lines, each once per threadgroup, by buffer."""

    launches: int
    threadgroups: int
    barriers: int
    multiplies: int
    unique_bytes: int
    group_bytes: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Work) -> Work:
        """Return the sum of both."""
        return Work(
            self.launches + other.launches,
            self.threadgroups + other.threadgroups,
            self.barriers + other.barriers,
            self.multiplies + other.multiplies,
            self.unique_bytes + other.unique_bytes,
            dict(Counter(self.group_bytes) + Counter(other.group_bytes)),
        )


class LaunchRecorder:
    """A device that records launches and returns zeros that are never computed."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return zeros in the shapes of the outputs."""
        self.launches.append(launch)
        shapes = zip(launch.output_shapes, launch.output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in shapes]


def groups(launch: Launch) -> Triple:
    """Return the number of threadgroups along each axis."""
    sizes = (min(g, t) for g, t in zip(launch.grid, launch.threadgroup, strict=True))
    x, y, z = (-(-g // t) for g, t in zip(launch.grid, sizes, strict=True))
    return x, y, z


def count(
    launches: Sequence[Launch],
    objects: Objects,
    *,
    alike: Collection[int] = (),
    whole: bool = False,
) -> Work:
    """Return the work of the launches, from one threadgroup per class, or all with `whole`."""
    total = Work(0, 0, 0, 0, 0)
    for launch in launches:
        total += Work(1, 0, 0, 0, _least_bytes(launch))
        for times, only in _chosen(launch, alike, whole).items():
            total += _scaled(_counts(launch, objects, only), times)
    return total


def _chosen(launch: Launch, alike: Collection[int], whole: bool) -> dict[int, list[Triple]]:
    """Return the positions to run by class size; an empty list means all."""
    if whole:
        return {1: []}
    positions: dict[int, list[Triple]] = defaultdict(list)
    for position, times in edge_classes(groups(launch), alike):
        positions[times].append(position)
    return positions


def fingerprint(launches: Sequence[Launch]) -> str:
    """Return a hash of code, shapes and geometry, without comments."""
    digest = hashlib.sha256()
    for launch in launches:
        source = generate(
            launch.kernel.compiled,
            launch.inputs,
            template=launch.template,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=launch.output_shapes,
            output_dtypes=launch.output_dtypes,
        )
        shapes = [x.shape for x in launch.inputs]
        code = " ".join(without_comments(source.text).split())
        digest.update(f"{code}{shapes}{launch.grid}{launch.threadgroup}".encode())
    return digest.hexdigest()[:16]


def _least_bytes(launch: Launch) -> int:
    """Return the bytes of every input and output, once."""
    outputs = zip(launch.output_shapes, launch.output_dtypes, strict=True)
    written = sum(mx.zeros(shape, dtype).nbytes for shape, dtype in outputs)
    distinct = {id(x): x for x in launch.inputs}  # a dense head passes its weight three times
    return written + sum(x.nbytes for x in distinct.values())


def _counts(launch: Launch, objects: Objects, only: Sequence[Triple]) -> Counts:
    executor = Executor(traced=True, blank=True, objects=objects)
    run = executor.run(
        launch.kernel.compiled,
        launch.inputs,
        template=launch.template,
        grid=launch.grid,
        threadgroup=launch.threadgroup,
        output_shapes=launch.output_shapes,
        output_dtypes=launch.output_dtypes,
        only=only,
    )
    if run.reports:
        raise WrongBehaviour(launch.kernel.name, run)
    return run.counts


def _scaled(counts: Counts, times: int) -> Work:
    lines = {
        name: LINE * times * (b.group_lines_read + b.group_lines_written)
        for name, b in counts.buffers.items()
        if not name.endswith(("_shape", "_strides", "_ndim"))
    }
    return Work(
        0,
        counts.threadgroups * times,
        counts.barriers * times,
        counts.multiplies * times,
        0,
        lines,
    )
