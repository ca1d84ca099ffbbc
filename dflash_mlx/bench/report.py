"""Formats a report as plain text.

It must not compute figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_mlx.bench.summary import ArmFigures, BenchReport, Spread


def lines(report: BenchReport) -> Iterator[str]:
    """Yield a report line by line."""
    machine, pair = report.machine, report.pair
    yield f"{pair['model']} + {pair['draft']}"
    yield (
        f"{machine['chip']}, {machine['device']}, BLAS {machine['blas']}, mlx {machine['mlx']}, "
        f"mlx-lm {machine['mlx_lm']}, {report.thermal or 'temperature unknown'}"
    )
    if report.interrupted_reason:
        yield f"{report.interrupted_reason}: the run is incomplete"
    yield ""
    yield from _parity(report)
    yield ""
    yield from _throughput(report.figures)
    yield ""
    yield from _parts(report.figures)
    yield from _bytes(report)
    yield f"peak memory: {report.peak_memory_bytes / 2**20:.0f} MiB"
    yield ""
    yield f"verdict: {report.verdict['why']}"


def _parity(report: BenchReport) -> Iterator[str]:
    """Yield for each arm how many texts equal plain decoding's, and each difference."""
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


def _throughput(figures: Sequence[ArmFigures]) -> Iterator[str]:
    heads = f"{'tokens/s':>16} {'speedup':>18} {'tok/round':>10} {'accepted':>9}"
    yield f"{'kind':24} {'arm':9} {heads}"
    for figure in sorted(figures, key=lambda item: (item.kind == "all", item.kind)):
        per_round = f"{figure.tokens_per_round:.2f}" if figure.tokens_per_round else "-"
        accepted = f"{figure.acceptance:.0%}" if figure.acceptance is not None else "-"
        yield (
            f"{figure.kind:24} {figure.arm:9} {spelled(figure.throughput):>16} "
            f"{spelled(figure.speedup, 2, 'x'):>18} {per_round:>10} {accepted:>9}"
        )


def _parts(figures: Sequence[ArmFigures]) -> Iterator[str]:
    timed = [figure for figure in figures if figure.kind == "all" and figure.verify_s is not None]
    if not timed:
        return
    yield "ms per round         draft   verify     rest   of bound"
    for figure in timed:
        bound = f"{figure.bound_share:.0%}" if figure.bound_share else "-"
        yield (
            f"{figure.arm:18} {ms(figure.draft_s):>7} {ms(figure.verify_s):>8} "
            f"{ms(figure.overhead_s):>8} {bound:>10}"
        )
    yield ""


def _bytes(report: BenchReport) -> Iterator[str]:
    if report.read_bytes_per_s is None or report.memory_bytes_per_s is None:
        return
    yield (
        f"a plain step reads the weights at {report.read_bytes_per_s / 1e9:.1f} GB/s, "
        f"{report.read_bytes_per_s / report.memory_bytes_per_s:.0%} of the "
        f"{report.memory_bytes_per_s / 1e9:.1f} GB/s of a sum"
    )


def spelled(value: Spread | None, digits: int = 1, unit: str = "") -> str:
    """Return a median with its quartiles, or '-' for None."""
    if value is None:
        return "-"
    return f"{value.median:.{digits}f}{unit} ({value.low:.{digits}f}-{value.high:.{digits}f})"


def ms(seconds: float | None) -> str:
    """Return milliseconds, or '-' for None."""
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
