"""Writes the count tables into docs/kernels.md, between two marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.metal.count.baseline import Counted
from tests.metal.count.chips import CHIPS, FLOPS_PER_MULTIPLY, Chip, least_ms
from tests.metal.count.entries import Entry
from tests.metal.count.models import CONTEXT, MODELS, ROWS

DOCUMENT = Path(__file__).parents[3] / "docs" / "kernels.md"
BEGIN, END = "<!-- counts: written by python -m tests.metal.count -->\n", "<!-- counts end -->\n"

LEGEND = f"""
Every cell gives M = {", ".join(map(str, ROWS))} rows of the verified block.
*MB minimum*: every input read and every output written once, the traffic of perfect caches.
*MB by threadgroup*: 64-byte lines, each once per threadgroup, the traffic if caches served one
threadgroup only. The traffic on a GPU lies between the two.
*Read*: how often the weights (for attention, keys and values) are read by that second count.
*Multiplies*: 8x8 multiplies issued, relative to the useful ones; vector kernels use none.
MLX uses qmv_wide or gemv_wide for few rows and qmm_t for more, by chip and shape.
Attention has {CONTEXT} keys before the block; where no MLX kernel is listed, MLX runs
several operations. For dense weights and {max(ROWS)} rows MLX uses a matrix kernel that is not
counted here. Counts are exact, but they are not times.
"""


def render(every: Sequence[Entry], counted: Mapping[str, Counted]) -> str:
    """Return the text between the marks."""
    parts = [LEGEND.strip()]
    for model in MODELS:
        parts.append(f"### {model.name}\n\n{_model(model.name, every, counted)}")
    parts.append(f"### Computed minimum time of the matrix products\n\n{_bounds(every, counted)}")
    return "\n\n".join(parts) + "\n"


def write(text: str) -> None:
    """Replace the text between the marks of docs/kernels.md."""
    before, after = _around()
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def written() -> str:
    """Return the text between the marks of docs/kernels.md."""
    if not DOCUMENT.exists() or BEGIN not in DOCUMENT.read_text(encoding="utf-8"):
        return ""
    text = DOCUMENT.read_text(encoding="utf-8")
    return text.split(BEGIN)[1].split(END)[0].strip() + "\n"


def _around() -> tuple[str, str]:
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else "# Kernels\n\n"
    if BEGIN not in text:
        return text.rstrip() + "\n\n## Counted work\n\n", ""
    before, rest = text.split(BEGIN)
    return before, rest.split(END)[1]


Cell = Callable[[Entry, Counted], str]
COLUMNS: dict[str, Cell] = {
    "launches": lambda e, c: str(c.launches),
    "MB minimum": lambda e, c: _short(c.unique_bytes / 1e6),
    "MB by threadgroup": lambda e, c: _short(c.group_bytes / 1e6),
    "read": lambda e, c: f"{c.watched / e.watched_bytes:.1f}x",
    "multiplies": lambda e, c: (
        f"{c.multiplies * FLOPS_PER_MULTIPLY / e.flops:.1f}x" if c.multiplies else "-"
    ),
    "barriers": lambda e, c: str(c.barriers),
}


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _model(name: str, every: Sequence[Entry], counted: Mapping[str, Counted]) -> str:
    lines: dict[tuple[str, str, str, int], dict[int, Entry]] = defaultdict(dict)
    for entry in every:
        if entry.model == name:
            lines[entry.layer, entry.weights, entry.kernel, entry.times][entry.rows] = entry
    table = [_row(("layer", "per forward", "weights", "kernel", *COLUMNS))]
    table.append(_row(["---"] * (4 + len(COLUMNS))))
    for (layer, weights, kernel, times), by_rows in lines.items():
        cells = [_cell(by_rows, counted, column) for column in COLUMNS.values()]
        table.append(_row([layer, str(times), weights, kernel, *cells]))
    return "\n".join(table)


def _cell(by_rows: Mapping[int, Entry], counted: Mapping[str, Counted], column: Cell) -> str:
    values = [
        column(by_rows[rows], counted[by_rows[rows].key]) if rows in by_rows else "-"
        for rows in ROWS
    ]
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


OURS = ("quantized_verify", "dense_verify", "head_argmax")
BOUNDS = """
Computed, not measured: the sum over all matrices of a forward pass without attention, in
milliseconds. Each term is the larger of bytes over bandwidth and issued operations over float32
rate, with the public specifications below. Two numbers are the minimum and the maximum traffic of
the weights. None of these kernels uses the matrix units of M5.
"""


def _bounds(every: Sequence[Entry], counted: Mapping[str, Counted]) -> str:
    families: dict[tuple[str, str, str, int], list[Entry]] = defaultdict(list)
    for entry in every:
        if "attention " not in entry.layer or " keys" not in entry.layer:
            family = "ours" if entry.kernel in OURS else entry.kernel
            families[entry.model, entry.weights, family, entry.rows].append(entry)
    chips = [f"{c.name} ({c.bandwidth:.0f} GB/s, {c.tflops} TFLOP/s)" for c in CHIPS]
    table = [_row(("model", "weights", "kernels", "M", *chips)), _row(["---"] * (4 + len(CHIPS)))]
    for (model, weights, family, rows), members in sorted(families.items(), key=_by_model):
        cells = [_interval(chip, members, counted) for chip in CHIPS]
        table.append(_row([model, weights, family, str(rows), *cells]))
    return BOUNDS.strip() + "\n\n" + "\n".join(table)


def _by_model(item: tuple[tuple[str, str, str, int], list[Entry]]) -> tuple[int, str, int, str]:
    (model, weights, family, rows), _ = item
    return [m.name for m in MODELS].index(model), weights, rows, family


def _interval(chip: Chip, members: Sequence[Entry], counted: Mapping[str, Counted]) -> str:
    low = high = 0.0
    for entry in members:
        c = counted[entry.key]
        flops = c.multiplies * FLOPS_PER_MULTIPLY or entry.flops
        again = max(0, c.watched - entry.watched_bytes)
        low += entry.times * least_ms(chip, c.unique_bytes, flops)
        high += entry.times * least_ms(chip, c.unique_bytes + again, flops)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
