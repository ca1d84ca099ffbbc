"""Converts generated Metal source to a C++ translation unit for the shim.

Rewrites declarations of threadgroup variables, which all fibers of a threadgroup share, and
removes the explicit instantiation. Line numbers stay the same.
"""

from __future__ import annotations

import functools
import re

from tests.metal.executor.source import Parameter, Source

# `threadgroup TYPE name[size]..., name...;` but neither pointers, references nor parameters.
_DECLARATION = re.compile(
    r"\bthreadgroup\s+"
    r"(?P<type>(?:const\s+)?(?:typename\s+)?[A-Za-z_][\w:]*(?:\s*<[^;{}()]*?>)?)\s+"
    r"(?P<names>[A-Za-z_]\w*\s*(?:\[[^;]*?\]\s*)*(?:,\s*[A-Za-z_]\w*\s*(?:\[[^;,]*?\]\s*)*)*);"
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
    text = share_threadgroup_variables(without_comments(source.text))
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
