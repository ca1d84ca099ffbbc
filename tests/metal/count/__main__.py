"""`python -m tests.metal.count`: write the table, or check it."""

from __future__ import annotations

import argparse
import sys

from tests.metal.count import table
from tests.metal.count.baseline import changed, load, recount, sample, save
from tests.metal.count.entries import entries
from tests.metal.executor import Objects, missing


def main(arguments: list[str]) -> int:
    """Exit status 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.metal.count", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args(arguments).check
    reason = missing()
    if reason:
        sys.stderr.write(f"nothing counted: {reason}\n")
        return 2
    every, stored, objects = list(entries()), load(), Objects()
    stale = changed(every, stored)
    wrong = []
    for entry in sample(every, stale) if check else stale:
        counted = recount(entry, objects)
        sys.stderr.write(f"counted {entry.key}\n")
        if check and not counted.agrees(stored.get(entry.key)):
            wrong.append(entry.key)
        stored[entry.key] = counted
    counts = {entry.key: stored[entry.key] for entry in every if entry.key in stored}
    text = table.render([entry for entry in every if entry.key in counts], counts)
    if not check:
        save(counts)
        table.write(text)
        return 0
    if not wrong and table.written() != text:
        wrong.append("docs/kernels.md")
    for key in wrong:
        sys.stderr.write(f"differs from what is stored: {key}\n")
    if wrong:
        sys.stderr.write("if the change is meant, run: python -m tests.metal.count\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
