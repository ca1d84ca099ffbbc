"""A report for people: tables in plain text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_mlx.bench.summary import Figure, Report, Spread


def lines(report: Report) -> Iterator[str]:
    """Yield a report line by line."""
    machine, pair = report.machine, report.pair
    yield f"{pair['model']} + {pair['draft']}"
    yield (
        f"{machine['chip']}, {machine['device']}, BLAS {machine['blas']}, mlx {machine['mlx']}, "
        f"mlx-lm {machine['mlx_lm']}, {report.thermal or 'temperature unknown'}"
    )
    if report.broken_off:
        yield f"{report.broken_off}: what follows is a part of the run"
    yield ""
    yield from _parity(report)
    yield ""
    yield from _speeds(report.figures)
    yield ""
    yield from _parts(report.figures)
    yield from _bytes(report)
    yield f"peak memory: {report.peak_memory_bytes / 2**20:.0f} MiB"
    yield ""
    yield f"verdict: {report.verdict['why']}"


def _parity(report: Report) -> Iterator[str]:
    """Say for each arm whether its texts are the target's own, and show where they are not."""
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for row in report.parity:
        arms.setdefault(row["arm"], []).append(row)
    for arm, rows in arms.items():
        equal = sum(row["verdict"] == "equal" for row in rows)
        yield f"text of {arm}: equal to plain decoding's for {equal} of {len(rows)} prompts"
        for row in rows:
            if row["verdict"] != "equal":
                margin = (
                    "" if row["margin"] is None else f", top two logits {row['margin']:.2g} apart"
                )
                yield (
                    f"  prompt {row['prompt'] + 1} ({row['kind']}): {row['verdict']} "
                    f"at token {row['at']}{margin}"
                )


def _speeds(figures: Sequence[Figure]) -> Iterator[str]:
    heads = f"{'tokens/s':>16} {'of plain':>18} {'per round':>10} {'accepted':>9}"
    yield f"{'kind':24} {'arm':9} {heads}"
    for figure in sorted(figures, key=lambda item: (item.kind == "all", item.kind)):
        per_round = f"{figure.tokens_per_round:.2f}" if figure.tokens_per_round else "-"
        accepted = f"{figure.acceptance:.0%}" if figure.acceptance is not None else "-"
        yield (
            f"{figure.kind:24} {figure.arm:9} {spelled(figure.speed):>16} "
            f"{spelled(figure.of_plain, 2, 'x'):>18} {per_round:>10} {accepted:>9}"
        )


def _parts(figures: Sequence[Figure]) -> Iterator[str]:
    timed = [figure for figure in figures if figure.kind == "all" and figure.verify_s is not None]
    if not timed:
        return
    yield "a round, in ms       draft   verify     rest   of bound"
    for figure in timed:
        bound = f"{figure.of_bound:.0%}" if figure.of_bound else "-"
        yield (
            f"{figure.arm:18} {ms(figure.draft_s):>7} {ms(figure.verify_s):>8} "
            f"{ms(figure.overhead_s):>8} {bound:>10}"
        )
    yield ""


def _bytes(report: Report) -> Iterator[str]:
    if report.read_bytes_per_s is None or report.memory_bytes_per_s is None:
        return
    yield (
        f"a plain step reads the weights at {report.read_bytes_per_s / 1e9:.1f} GB/s, "
        f"{report.read_bytes_per_s / report.memory_bytes_per_s:.0%} of the "
        f"{report.memory_bytes_per_s / 1e9:.1f} GB/s of a sum"
    )


def spelled(value: Spread | None, digits: int = 1, unit: str = "") -> str:
    """Return a median with its middle half, '-' for nothing."""
    if value is None:
        return "-"
    return f"{value.median:.{digits}f}{unit} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def ms(seconds: float | None) -> str:
    """Return milliseconds, '-' for nothing."""
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
