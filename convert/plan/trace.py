"""A rule over whole tensors, followed without loading them: where does each output come from?

The rule is run on stand-ins that have shapes and no values, and the graph that MLX records says
what became of them. Outputs that only rearrange rows are read row by row afterwards, so a stack
of experts needs no more memory than one chunk; the rest (transposed convolutions, shifted
norms) are computed one tensor at a time, by the same rule on the real values.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx

from dflash_mlx.convert.plan.computed import ComputedRows, Rule
from dflash_mlx.convert.plan.row_graph import RowGraph
from dflash_mlx.convert.tensors import Rows, mlx_dtype


def trace_rule(rule: Rule, tensors: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the outputs of `rule` over `tensors`, as rows that are read when asked."""
    stand_ins = {
        name: mx.zeros(rows.shape, mlx_dtype(rows.dtype)) for name, rows in tensors.items()
    }
    made = rule(dict(stand_ins))
    names = {id(array): name for name, array in stand_ins.items()}
    found = {name: tensors[names[id(array)]] for name, array in made.items() if id(array) in names}
    others = [name for name in made if name not in found]
    try:
        found |= _recorded(rule, tensors, stand_ins, others)
    except ValueError:
        # some operations cannot be recorded; keep them from spoiling the other outputs
        for name in others:
            found |= _alone(rule, tensors, stand_ins, name)
    return {name: found[name] for name in made}


def _recorded(
    rule: Rule,
    tensors: Mapping[str, Rows],
    stand_ins: Mapping[str, mx.array],
    wanted: Sequence[str],
) -> dict[str, Rows]:
    graph = RowGraph(list(tensors.values()))
    mx.export_function(graph.record, _outputs(rule, list(tensors), wanted), *stand_ins.values())
    return {
        name: _rows(graph, node, rule, tensors, name)
        for name, node in zip(wanted, graph.outputs, strict=True)
    }


def _alone(
    rule: Rule, tensors: Mapping[str, Rows], stand_ins: Mapping[str, mx.array], name: str
) -> dict[str, Rows]:
    """Return one output; `mx.contiguous` moves no rows but is the one thing MLX cannot record."""
    graph = RowGraph(list(tensors.values()))
    try:
        mx.export_function(graph.record, _outputs(rule, list(tensors), [name]), *stand_ins.values())
    except ValueError:
        dot = io.StringIO()
        mx.export_to_dot(dot, rule(dict(stand_ins))[name])
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
