"""Finds source that Apple's compiler refuses or MLX misreads, although g++ and clang accept it.

The rules are patterns, not a parser, so kernel sources have one declaration per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.metal.executor.lower import without_comments

ATTRIBUTES = (
    "dispatch_quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "grid_origin",
    "grid_size",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_threadgroup",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_simdgroup",
    "threads_per_threadgroup",
)

FORBIDDEN = {
    "double": (r"\b(?:long\s+)?double\b", "Metal has no double"),
    "long long": (r"\blong\s+long\b", "Metal has no long long"),
    "new or delete": (r"\b(?:new|delete)\b", "Metal has no heap"),
    "goto": (r"\bgoto\b", "Metal has no goto"),
    "lambda": (r"\[\s*[&=]?\s*\]\s*\(|\[[&=]?\w*\]\s*\([^)]*\)\s*(?:->\s*\w+\s*)?\{", "no lambdas"),
    "std::": (r"\bstd\s*::", "the C++ standard library is not there"),
    "exceptions": (r"\b(?:throw|try|catch)\b", "Metal has no exceptions"),
    "run-time types": (r"\b(?:virtual|dynamic_cast|typeid|thread_local)\b", "not in Metal"),
    "structured binding": (r"\bauto\s*&?\s*\[", "Metal 3 is C++14"),
    "standard header": (r"#\s*include\s*<(?!metal)", "only Metal's own headers exist"),
    "inline assembly": (r"\b(?:asm|__asm__)\b", "not in Metal"),
    "GNU builtin": (r"\b__builtin_\w+", "not in Metal"),
    "thread pointer": (
        r"\bthread\s+\w+\s*\*",
        "the executor checks the bounds of local arrays only through references to arrays",
    ),
    "variable arguments": (r",\s*\.\.\.\s*\)", "not in Metal"),
}
SPACES = r"(?:device|constant|threadgroup|thread)"
_POINTER = re.compile(
    r"(?<![&|*\w])([A-Za-z_][\w:]*(?:\s*<[^<>;()]*>)?)\s*[*&]+\s*([A-Za-z_]\w*)?\s*$"
)
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(([^;{}]*?)\)\s*(?:const\s*)?(?:thread\s*)?\{", re.S)
_KEYWORDS = {"if", "for", "while", "switch", "return", "catch", "sizeof", "constexpr"}


@dataclass(frozen=True)
class Finding:
    """One finding; `line` is a line of the header or body that `part` names."""

    rule: str
    part: str
    line: int
    detail: str

    def __str__(self) -> str:
        return f"{self.part} line {self.line}: {self.rule}: {self.detail}"


def lint(header: str, body: str, inputs: tuple[str, ...]) -> list[Finding]:
    """Return the findings in the header and body of one kernel."""
    findings: list[Finding] = []
    for part, text in (("header", header), ("body", body)):
        code = without_comments(text)
        findings += _forbidden(part, code)
        findings += _unqualified(part, code)
    findings += _header_only(without_comments(header))
    findings += _accidental_names(body, inputs)
    return findings


def _at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _forbidden(part: str, code: str) -> Iterator[Finding]:
    for rule, (pattern, reason) in FORBIDDEN.items():
        for match in re.finditer(pattern, code):
            yield Finding(rule, part, _at(code, match.start()), f"{match.group(0)!r}: {reason}")


def _functions(code: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield name, parameters, position and body of every function defined in the text."""
    for match in _FUNCTION.finditer(code):
        name = match.group(1)
        if name not in _KEYWORDS:
            yield name, match.group(2), match.start(), _block(code, match.end() - 1)


def _block(code: str, start: int) -> str:
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == "{") - (code[i] == "}")
        if depth == 0:
            return code[start : i + 1]
    return code[start:]


def _unqualified(part: str, code: str) -> Iterator[Finding]:
    """Yield pointers and references without an address space."""
    for name, parameters, position, _ in _functions(code):
        for parameter in _split(parameters):
            if _is_pointer(parameter) and not re.search(rf"\b{SPACES}\b", parameter):
                detail = f"{parameter.strip()!r} of {name}"
                yield Finding("address space missing", part, _at(code, position), detail)
    for match in re.finditer(r"(?:^|[;{}])\s*((?:const\s+)?\w+\s*\*\s*\w+\s*=)", code):
        if not re.search(rf"\b(?:{SPACES}|return|else)\b", match.group(1)):
            line = _at(code, match.start(1))
            yield Finding("address space missing", part, line, match.group(1).strip())


def _is_pointer(parameter: str) -> bool:
    return bool(_POINTER.search(parameter)) or "(&" in parameter or "(*" in parameter


def _split(parameters: str) -> list[str]:
    parts, depth = [""], 0
    for char in parameters:
        depth += (char in "(<[") - (char in ")>]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _header_only(code: str) -> Iterator[Finding]:
    """Yield recursion, threadgroup variables and mutable globals."""
    for name, _, position, block in _functions(code):
        if re.search(rf"\b{name}\s*(?:<[^;{{}}]*?>)?\s*\(", block):
            yield Finding("recursion", "header", _at(code, position), f"{name} calls itself")
    for match in re.finditer(r"\bthreadgroup\s+[\w:<>, ]+?\s+\w+\s*(?:\[[^;]*\])?\s*;", code):
        detail = "threadgroup variables live in the kernel body"
        yield Finding("threadgroup variable", "header", _at(code, match.start()), detail)
    depth = 0
    for number, line in enumerate(code.splitlines(), 1):
        outside = depth == 0
        depth += line.count("{") - line.count("}")
        mutable = re.match(
            r"\s*(?:static\s+)?(?:int|uint|float|half|bool)\s+\w+\s*(?:=|;|\[)", line
        )
        if outside and mutable and "constant" not in line:
            detail = "variables outside functions must be constant"
            yield Finding("global variable", "header", number, detail)


def _accidental_names(body: str, inputs: tuple[str, ...]) -> Iterator[Finding]:
    """Yield names for which MLX adds a parameter by accident: it searches for substrings."""
    code = without_comments(body)
    facts = tuple(f"{name}_{fact}" for name in inputs for fact in ("shape", "strides", "ndim"))
    used = 0
    for name in (*ATTRIBUTES, *facts):
        whole = len(re.findall(rf"(?<!\w){name}(?!\w)", code))
        used += whole and name in ATTRIBUTES
        position = body.find(name)
        if position >= 0 and not whole and not _part_of_longer_name(name, code):
            detail = f"{name} is in a comment or part of another name; MLX adds a parameter"
            yield Finding("accidental name", "body", _at(body, position), detail)
        declared = re.search(rf"\b(?:u?int|float|auto|ushort|uint3)\s+{name}\b", code)
        if declared:
            detail = f"a local called {name} redefines MLX's parameter"
            yield Finding("accidental name", "body", _at(code, declared.start()), detail)
    if not used:
        yield Finding("no attribute", "body", 1, "MLX writes a broken signature without any")


def _part_of_longer_name(name: str, code: str) -> bool:
    """Whether the name occurs only inside a longer attribute that the body uses."""
    longer = [other for other in ATTRIBUTES if name in other and name != other]
    return any(re.search(rf"(?<!\w){other}(?!\w)", code) for other in longer)
