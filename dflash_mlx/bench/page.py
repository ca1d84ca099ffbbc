"""Formats a report as one HTML page without scripts, fonts or network requests.

It must not compute figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dflash_mlx.bench.arms import AUTO, PLAIN
from dflash_mlx.bench.report import ms, spelled
from dflash_mlx.bench.summary import ArmFigures, BenchReport
from dflash_mlx.charts.page import html_page
from dflash_mlx.charts.svg import Series, bars, lines


def page(report: BenchReport) -> str:
    """Return the report as HTML."""
    machine, pair = report.machine, report.pair
    body = [
        f"<h1>{escape(str(pair['model']))}</h1>",
        f"<p>with the draft {escape(str(pair['draft']))}</p>",
        f'<p class="soft">{escape(_facts(machine))}. {escape(report.created_at)}. '
        f"{escape(report.thermal or 'temperature unknown')}.</p>",
        _verdict(report.verdict),
        _interrupted(report.interrupted_reason),
        f'<div class="plots">{"".join(_plots(report.figures))}</div>',
        "<h2>Speedup by kind of prompt</h2>",
        _throughput(report.figures),
        "<h2>Text compared with plain decoding</h2>",
        _parity(report.parity),
        "<h2>Time per round</h2>",
        _parts(report),
        "<h2>Answers</h2>",
        *(
            f"<details><summary>prompt {escape(name)}</summary><pre>{escape(text)}</pre></details>"
            for name, text in report.texts.items()
        ),
    ]
    return html_page(f"dflash-mlx bench: {pair['model']}", body)


def _facts(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['chip']}, {machine['device']}, BLAS {machine['blas']}, {machine['system']}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, dflash-mlx {machine['dflash_mlx']}"
    )


def _verdict(verdict: Mapping[str, Any]) -> str:
    off = "" if verdict["on"] else " off"
    return f'<div class="verdict{off}"><b>Verdict.</b> {escape(str(verdict["why"]))}</div>'


def _interrupted(reason: str | None) -> str:
    if reason is None:
        return ""
    return f"<p><b>{escape(reason[:1].upper() + reason[1:])}: the run is incomplete.</b></p>"


def _plots(figures: Sequence[ArmFigures]) -> Iterator[str]:
    whole = [figure for figure in figures if figure.kind == "all"]
    colours = {PLAIN: 5} | {
        figure.arm: colour
        for colour, figure in enumerate(figure for figure in whole if figure.arm != PLAIN)
    }
    kinds = list(dict.fromkeys(figure.kind for figure in figures if figure.kind != "all"))
    texts = [kind for kind in kinds if not kind.endswith(" tokens")]
    yield bars(
        "Speedup by kind of prompt",
        "speedup",
        texts,
        [
            Series(arm, _ratios(figures, arm, texts), colours[arm])
            for arm in colours
            if arm != PLAIN
        ],
        mark=1.0,
    )
    if sum(figure.arm.startswith("block ") for figure in whole) > 1:
        yield lines(
            "Speedup by block size",
            "block size",
            "speedup",
            [
                Series(kind, _by_block_size(figures, kind), colour)
                for colour, kind in enumerate([*texts, "all"])
            ],
        )
    if len(kinds) - len(texts) > 1:
        yield lines(
            "Speedup by context length",
            "prompt tokens",
            "speedup",
            [Series(arm, _by_context(figures, arm), colours[arm]) for arm in colours],
        )
    yield lines(
        "Acceptance rate by position",
        "position in the block",
        "share of rounds",
        [
            Series(
                figure.arm,
                [(at + 1, share) for at, share in enumerate(figure.by_position)],
                colours[figure.arm],
            )
            for figure in whole
        ],
    )
    longest = max((length for figure in whole for length in figure.accepted_lengths), default=-1)
    yield bars(
        "Accepted draft tokens per round",
        "share of drafted rounds",
        [str(length) for length in range(longest + 1)],
        [Series(figure.arm, _shares(figure), colours[figure.arm]) for figure in whole],
    )
    yield lines(
        "Throughput along the answer",
        "tokens so far",
        "tokens per second",
        [Series(figure.arm, figure.throughput_along, colours[figure.arm]) for figure in whole],
    )


def _ratios(
    figures: Sequence[ArmFigures], arm: str, kinds: Sequence[str]
) -> list[tuple[float, float]]:
    return [
        (kinds.index(figure.kind), figure.speedup.median)
        for figure in figures
        if figure.arm == arm and figure.kind in kinds and figure.speedup
    ]


def _by_context(figures: Sequence[ArmFigures], arm: str) -> list[tuple[float, float]]:
    return sorted(
        (int(figure.kind.split()[0]), figure.speedup.median)
        for figure in figures
        if figure.arm == arm and figure.kind.endswith(" tokens") and figure.speedup
    )


def _shares(figure: ArmFigures) -> list[tuple[float, float]]:
    rounds = sum(figure.accepted_lengths.values())
    return [(length, count / rounds) for length, count in figure.accepted_lengths.items()]


def _by_block_size(figures: Sequence[ArmFigures], kind: str) -> list[tuple[float, float]]:
    return sorted(
        (int(figure.arm.split()[1]), figure.speedup.median)
        for figure in figures
        if figure.kind == kind and figure.arm.startswith("block ") and figure.speedup
    )


def _throughput(figures: Sequence[ArmFigures]) -> str:
    rows = []
    for figure in sorted(figures, key=lambda item: (item.kind == "all", item.kind)):
        accepted = f"{figure.acceptance:.0%}" if figure.acceptance is not None else "-"
        rows.append(
            (
                figure.kind,
                figure.arm,
                spelled(figure.throughput),
                spelled(figure.speedup, 2, "x"),
                f"{figure.tokens_per_round:.2f}" if figure.tokens_per_round else "-",
                accepted,
                str(figure.throughput.count),
            )
        )
    heads = ("kind", "arm", "tokens/s", "speedup", "tokens/round", "accepted", "answers")
    return _table(heads, rows)


def _parity(parity: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            str(row["kind"]),
            str(row["arm"]),
            str(row["prompt"] + 1),
            str(row["verdict"]),
            "-" if row["at"] is None else str(row["at"]),
            "-" if row["margin"] is None else f"{row['margin']:.2g}",
        )
        for row in parity
    ]
    heads = ("kind", "arm", "prompt", "text", "first difference at token", "top-two logit gap")
    return _table(heads, rows)


def _parts(report: BenchReport) -> str:
    rows = [
        (
            figure.arm,
            "",
            ms(figure.draft_s),
            ms(figure.verify_s),
            ms(figure.overhead_s),
            f"{figure.bound_share:.0%}" if figure.bound_share else "-",
        )
        for figure in report.figures
        if figure.kind == "all" and figure.verify_s is not None
    ]
    heads = ("arm", "", "draft ms", "verify ms", "rest ms", "share of bound")
    words = [f"Peak memory {report.peak_memory_bytes / 2**20:.0f} MiB."]
    if report.read_bytes_per_s and report.memory_bytes_per_s:
        share = report.read_bytes_per_s / report.memory_bytes_per_s
        words.append(
            f"A plain step reads the weights at {report.read_bytes_per_s / 1e9:.1f} GB/s, "
            f"{share:.0%} of the {report.memory_bytes_per_s / 1e9:.1f} GB/s of a sum."
        )
    return (_table(heads, rows) if rows else "") + f"<p>{escape(' '.join(words))}</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr{' class=auto' if row[1] == AUTO else ''}>{cells}</tr>")
    return f'<div class="wide"><table><tr>{top}</tr>{"".join(lines)}</table></div>'
