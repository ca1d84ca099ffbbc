"""Maps the outputs of a recorded MLX graph to the input rows that they consist of.

It must not know models. It knows the operations that move whole rows; others give None.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_mlx.convert.tensors import (
    JoinedRows,
    RegroupedRows,
    Rows,
    Run,
    dtype_name,
    item_bytes,
    row_count,
    row_width,
)

_SAME_BYTES = {
    *("ExpandDims", "Squeeze", "Reshape", "Flatten", "Unflatten", "View"),
    *("Contiguous", "Copy", "StopGradient"),
}


@dataclass(frozen=True)
class _Node:
    """One array of the graph; `place` is its position among the outputs of its operation."""

    operation: str
    arguments: Sequence[Any]
    inputs: tuple[str, ...]
    place: int
    dtype: str
    shape: tuple[int, ...]


class RowGraph:
    """The graph of one traced function whose inputs are the tensors `inputs`, in order.

    `outputs` holds the names of its output arrays and `last` the name of the last recorded array.
    """

    def __init__(self, inputs: Sequence[Rows]) -> None:
        self._tensors = inputs
        self._input_index: dict[str, int] = {}
        self._nodes: dict[str, _Node] = {}
        self._rows: dict[str, Rows | None] = {}
        self.outputs: list[str] = []
        self.last = ""

    def record(self, event: dict[str, Any]) -> None:
        """Store one event of `mx.export_function`."""
        if event["type"] == "inputs":
            self._input_index = {node: index for index, (node, _, _) in enumerate(event["inputs"])}
        elif event["type"] == "outputs":
            self.outputs = [node for node, _, _ in event["outputs"]]
        elif event["type"] == "primitive":
            inputs = tuple(node for node, _, _ in event["inputs"])
            for place, (node, shape, dtype) in enumerate(event["outputs"]):
                self.last = node
                self._nodes[node] = _Node(
                    event["name"],
                    event["arguments"],
                    inputs,
                    place,
                    dtype_name(dtype),
                    tuple(shape),
                )

    def kind(self, node: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype's name and the shape of a node."""
        found = (
            self._tensors[self._input_index[node]]
            if node in self._input_index
            else self._nodes[node]
        )
        return found.dtype, found.shape

    def sources(self, node: str) -> set[int]:
        """Return the indices of the inputs that a node depends on."""
        found, pending, visited = set(), [node], {node}
        while pending:
            current = pending.pop()
            if current in self._input_index:
                found.add(self._input_index[current])
            elif current in self._nodes:
                unvisited = set(self._nodes[current].inputs) - visited
                visited |= unvisited
                pending.extend(unvisited)
        return found

    def rows(self, node: str) -> Rows | None:
        """Return a node as rows of the inputs; None if it does more than move rows."""
        if node not in self._rows:
            self._rows[node] = self._resolve(node)
        return self._rows[node]

    def _resolve(self, node: str) -> Rows | None:
        if node in self._input_index:
            return self._tensors[self._input_index[node]]
        if node not in self._nodes:
            return None  # a constant
        found = self._nodes[node]
        children = [self.rows(child) for child in found.inputs]
        rule = _RULES.get(found.operation)
        present = [child for child in children if child is not None]
        if rule is None or not present or len(present) != len(children):
            return None
        return rule(found, present)


def _same_bytes(node: _Node, inputs: list[Rows]) -> Rows | None:
    before = inputs[0]
    if (row_width(before.shape), before.dtype) == (row_width(node.shape), node.dtype):
        run = Run(before, 0, row_count(before.shape))
        return JoinedRows((run,), node.dtype, node.shape)
    wide = row_width(before.shape) * item_bytes(before.dtype)
    narrow = row_width(node.shape) * item_bytes(node.dtype)
    if not wide or not narrow or (wide % narrow and narrow % wide):
        return None
    return RegroupedRows(before, node.dtype, node.shape)


def _same_type(node: _Node, inputs: list[Rows]) -> Rows | None:
    return inputs[0] if inputs[0].dtype == node.dtype else None


def _concatenate(node: _Node, inputs: list[Rows]) -> Rows | None:
    axis = node.arguments[0] % len(node.shape)
    if axis == len(node.shape) - 1:
        return None
    outer = math.prod(node.shape[:axis])
    each = [row_count(rows.shape) // outer for rows in inputs]
    runs = (
        Run(rows, index * count, count)
        for index in range(outer)
        for rows, count in zip(inputs, each, strict=True)
    )
    return JoinedRows(tuple(runs), node.dtype, node.shape)


def _slice(node: _Node, inputs: list[Rows]) -> Rows | None:
    starts, _, strides = node.arguments
    return _cut(node, inputs[0], tuple(starts), tuple(strides))


def _split(node: _Node, inputs: list[Rows]) -> Rows | None:
    cuts, axis = node.arguments
    starts = [0] * len(node.shape)
    starts[axis] = (0, *cuts)[node.place]
    return _cut(node, inputs[0], tuple(starts), (1,) * len(node.shape))


def _cut(node: _Node, rows: Rows, starts: tuple[int, ...], strides: tuple[int, ...]) -> Rows | None:
    """Return the block of `rows` at `starts` with the node's shape; None if it cuts rows."""
    shape, before = node.shape, rows.shape
    if len(shape) < 2 or starts[-1] or shape[-1] != before[-1] or min(strides) < 1:
        return None
    leading = itertools.product(
        *(
            range(start, start + count * stride, stride)
            for start, count, stride in zip(starts[:-2], shape[:-2], strides[:-2], strict=True)
        )
    )
    runs = []
    for index in leading:
        block = 0
        for position, size in zip(index, before[:-2], strict=True):
            block = block * size + position
        runs.append(Run(rows, block * before[-2] + starts[-2], shape[-2], strides[-2]))
    return JoinedRows(tuple(runs), node.dtype, shape)


_Rule = Callable[[_Node, list[Rows]], Rows | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(sorted(_SAME_BYTES), _same_bytes),
    **{"AsType": _same_type, "Concatenate": _concatenate, "Slice": _slice, "Split": _split},
}
