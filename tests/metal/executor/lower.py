"""Converts generated Metal source to a C++ translation unit for the shim.

Threadgroup variables become references to memory that all fibers of a threadgroup share, locals
without an initialiser are filled with NaN. Line numbers stay the same.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable

from tests.metal.executor.source import Parameter, Source

# `threadgroup TYPE name[size]..., name...;` but neither pointers, references nor parameters.
_DECLARATION = re.compile(
    r"\bthreadgroup\s+"
    r"(?P<type>(?:const\s+)?(?:typename\s+)?[A-Za-z_][\w:]*(?:\s*<[^;{}()]*?>)?)\s+"
    r"(?P<names>[A-Za-z_]\w*\s*(?:\[[^;]*?\]\s*)*(?:,\s*[A-Za-z_]\w*\s*(?:\[[^;,]*?\]\s*)*)*);"
)
# A local `TYPE name;` or `TYPE name[size]...;` at the start of a statement.
_UNSET_LOCAL = re.compile(
    r"(?<=[;{}\n])(?P<declaration>[ \t]*(?!(?:return|using|typedef|else|goto|struct|class|enum)\b)"
    r"[A-Za-z_][\w:]*(?:<[^;{}()=]*>)?[ \t]+(?P<name>[A-Za-z_]\w*)(?:\[[^;\[\]]*\])*;)"
)
_TYPE_SCOPE = re.compile(
    r"\b(?:struct|class|union|enum|namespace)\b(?![^;{}]*\)\s*(?:const|thread)?\s*$)"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ARGUMENT_INDEX = re.compile(r"\[\[threadgroup\(\d+\)\]\]")
_INSTANTIATION = re.compile(r"^template \[\[host_name\(.*$", re.M)

_THREAD = {
    "thread_position_in_grid": "rt_vector(lane->grid_position)",
    "thread_position_in_threadgroup": "rt_vector(lane->position)",
    "threadgroup_position_in_grid": "rt_vector(group.position)",
    "threadgroups_per_grid": "rt_vector(group.count)",
    "threads_per_grid": "rt_vector(group.grid)",
    "grid_size": "rt_vector(group.grid)",
    "grid_origin": "uint3(0)",
    "threads_per_threadgroup": "rt_vector(group.size)",
    "dispatch_threads_per_threadgroup": "rt_vector(group.full_size)",
    "thread_index_in_threadgroup": "lane->index",
    "thread_index_in_simdgroup": "lane->lane",
    "thread_index_in_quadgroup": "lane->lane % 4",
    "simdgroup_index_in_threadgroup": "lane->index / 32",
    "quadgroup_index_in_threadgroup": "lane->index / 4",
    "simdgroups_per_threadgroup": "group.simdgroups",
    "dispatch_simdgroups_per_threadgroup": (
        "(group.full_size[0] * group.full_size[1] * group.full_size[2] + 31) / 32"
    ),
    "quadgroups_per_threadgroup": "(group.threads + 3) / 4",
    "threads_per_simdgroup": "32u",
    "thread_execution_width": "32u",
}


@functools.lru_cache(maxsize=64)
def translation_unit(source: Source) -> str:
    """Return C++ text whose function `rt_entry(arguments)` runs the kernel for the current lane."""
    text = fill_unset_locals(share_threadgroup_variables(without_comments(source.text)))
    text = _ARGUMENT_INDEX.sub("", _INSTANTIATION.sub("", text))
    arguments = ",\n      ".join(_argument(p) for p in source.parameters)
    return (
        "#include <metal_stdlib>\n"
        f'#line 1 "{source.name}.metal"\n{text}\n'
        '#line 1 "entry"\n'
        "static uint3 rt_vector(const uint32_t (&v)[3]) { return uint3(v[0], v[1], v[2]); }\n"
        'extern "C" __attribute__((no_sanitize("thread")))\n'
        "void rt_entry(void* const* arguments) {\n"
        "  const rt::Lane* lane = rt::lane;\n"
        "  const rt::Threadgroup& group = rt::threadgroup_state;\n"
        f"  {source.entry}(\n      {arguments});\n"
        "}\n"
    )


def without_comments(text: str) -> str:
    """Return the text without comments, with the same line numbers."""
    return _COMMENT.sub(lambda match: " " + "\n" * match.group(0).count("\n"), text)


def share_threadgroup_variables(text: str) -> str:
    """Replace declarations of threadgroup variables by references to shared memory."""

    def replace(match: re.Match[str]) -> str:
        declared = []
        for part in _split(match.group("names")):
            name, size = re.fullmatch(r"(\w+)\s*(.*)", part, re.S).groups()  # type: ignore[union-attr]
            declared.append(
                f"using rt_{name} = {match.group('type')}{' '.join(size.split())}; "
                f'rt_{name}& {name} = rt::threadgroup_variable<rt_{name}>("{name}", __LINE__);'
            )
        return " ".join(declared) + "\n" * match.group(0).count("\n")

    return _DECLARATION.sub(replace, text)


def fill_unset_locals(text: str) -> str:
    """Add a call that fills every local declared without an initialiser with NaN."""
    in_function = _function_positions(text)

    def fill(match: re.Match[str]) -> str:
        declaration = match.group("declaration")
        if not in_function(match.start("name")):
            return declaration
        return f"{declaration} rt::fill_unset({match.group('name')});"

    return _UNSET_LOCAL.sub(fill, text)


def _function_positions(text: str) -> Callable[[int], bool]:
    """Return a function that tells whether a position is inside the body of a function."""
    edges, states, scopes = [0], [False], [False]
    start = 0  # of the statement or head before the next brace
    for match in re.finditer(r"[;{}]", text):
        if match.group() == "{":
            is_type = _TYPE_SCOPE.search(text, start, match.start()) is not None
            scopes.append(not is_type)
        elif match.group() == "}" and len(scopes) > 1:
            scopes.pop()
        edges.append(match.end())
        states.append(scopes[-1])
        start = match.end()
    return lambda position: states[bisect.bisect_right(edges, position) - 1]


def keep_threadgroup_variables(text: str) -> str:
    """Declare threadgroup variables static, as compilers with address spaces require."""
    return _DECLARATION.sub(lambda match: "static " + match.group(0), text)


def _split(names: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for char in names:
        depth += (char in "[(<") - (char in "])>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _argument(parameter: Parameter) -> str:
    if parameter.index is None:
        return _THREAD[parameter.name]
    type_ = parameter.type
    if type_.endswith("&"):
        return f"*({type_[:-1]}*)arguments[{parameter.index}]"
    return f"({type_})arguments[{parameter.index}]"
