"""Type check of a generated kernel with real address spaces (`clang -fsyntax-only`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.metal.executor.lower import keep_threadgroup_variables, without_comments
from tests.metal.executor.source import Source

INCLUDE = Path(__file__).parent / "include_typed"
CLANG = "clang++-19"
FLAGS = ("-std=c++17", "-fsyntax-only", "-w", "-ferror-limit=20", f"-I{INCLUDE}")

_HOST_NAME = re.compile(r"^template \[\[host_name\([^)]*\)\]\] \[\[kernel\]\] ", re.M)
_ATTRIBUTE = re.compile(r"\[\[[^\]]*\]\]")


def missing() -> str | None:
    """Return why kernels cannot be type-checked on this machine, or None."""
    if shutil.which(CLANG) is None:
        return f"the type check needs {CLANG} (Debian and Ubuntu: apt install clang-19)"
    return None


def typecheck(source: Source) -> list[str]:
    """Return the errors of this instantiation as `line N: message`; empty if well typed."""
    text = keep_threadgroup_variables(without_comments(source.text))
    text = _ATTRIBUTE.sub("", _HOST_NAME.sub("template ", text))
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.cpp"
        unit.write_text(f'#include <metal_stdlib>\n#line 1 "kernel.metal"\n{text}')
        command = [CLANG, *FLAGS, str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode and not errors:
        errors = done.stderr.splitlines()
    return [re.sub(r"^kernel\.metal:(\d+):\d+: error: ", r"line \1: ", error) for error in errors]
