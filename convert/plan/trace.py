"""Finds the source rows of each output of a rule such as mlx-lm's `sanitize`, without weights.

It must not know models.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx

from dflash_mlx.convert.plan.computed import ComputedRows, Rule
from dflash_mlx.convert.plan.row_graph import RowGraph
from dflash_mlx.convert.tensors import Rows, mlx_dtype


def trace_rule(rule: Rule, tensors: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the outputs of `rule` over `tensors`, readable by row range.

    The rule runs on placeholders that have shapes and no values, and MLX records the graph.
    Outputs that only rearrange rows are read row by row later, so a stack of experts needs one
    chunk of memory. The others (transposed convolutions, shifted norms) are computed one tensor
    at a time by the same rule on the real values.
    """
    placeholders = {
        name: mx.zeros(rows.shape, mlx_dtype(rows.dtype)) for name, rows in tensors.items()
    }
    made = rule(dict(placeholders))
    names = {id(array): name for name, array in placeholders.items()}
    found = {name: tensors[names[id(array)]] for name, array in made.items() if id(array) in names}
    others = [name for name in made if name not in found]
    try:
        found |= _recorded(rule, tensors, placeholders, others)
    except ValueError:
        # MLX cannot record some operations; record each output alone so that the others succeed
        for name in others:
            found |= _alone(rule, tensors, placeholders, name)
    return {name: found[name] for name in made}


def _recorded(
    rule: Rule,
    tensors: Mapping[str, Rows],
    placeholders: Mapping[str, mx.array],
    wanted: Sequence[str],
) -> dict[str, Rows]:
    graph = RowGraph(list(tensors.values()))
    mx.export_function(graph.record, _outputs(rule, list(tensors), wanted), *placeholders.values())
    return {
        name: _rows(graph, node, rule, tensors, name)
        for name, node in zip(wanted, graph.outputs, strict=True)
    }


def _alone(
    rule: Rule, tensors: Mapping[str, Rows], placeholders: Mapping[str, mx.array], name: str
) -> dict[str, Rows]:
    """Return one output. MLX cannot record a final `mx.contiguous`, which moves no rows."""
    graph = RowGraph(list(tensors.values()))
    try:
        mx.export_function(
            graph.record, _outputs(rule, list(tensors), [name]), *placeholders.values()
        )
    except ValueError:
        dot = io.StringIO()
        mx.export_to_dot(dot, rule(dict(placeholders))[name])
        if not _ends_in_its_only_contiguous(dot.getvalue()) or not graph.last:
            raise
        return {name: _rows(graph, graph.last, rule, tensors, name)}
    return {name: _rows(graph, graph.outputs[0], rule, tensors, name)}


def _outputs(
    rule: Rule, names: Sequence[str], wanted: Sequence[str]
) -> Callable[..., list[mx.array]]:
    def positional(*arrays: mx.array) -> list[mx.array]:
        made = rule(dict(zip(names, arrays, strict=True)))
        return [made[name] for name in wanted]

    return positional


def _rows(graph: RowGraph, node: str, rule: Rule, tensors: Mapping[str, Rows], name: str) -> Rows:
    rows = graph.rows(node)
    if rows is None:
        names = list(tensors)
        needed = frozenset(names[index] for index in graph.sources(node))
        rows = ComputedRows(rule, tensors, needed, name, *graph.kind(node))
    return rows


def _ends_in_its_only_contiguous(dot: str) -> bool:
    operations = re.findall(r'\{ (\d+) \[label ="(\w+)"', dot)
    last = re.findall(r'(\d+) -> "', dot)[-1:]
    contiguous = [operation for operation, label in operations if label == "Contiguous"]
    return contiguous == last
