"""A report as one HTML page that needs nothing else: no script, no font, no network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dflash_mlx.bench.arms import AUTO, PLAIN
from dflash_mlx.bench.report import ms, spelled
from dflash_mlx.bench.summary import Figure, Report
from dflash_mlx.charts.page import sheet
from dflash_mlx.charts.svg import Series, bars, lines


def page(report: Report) -> str:
    """Return the report as HTML."""
    machine, pair = report.machine, report.pair
    body = [
        f"<h1>{escape(str(pair['model']))}</h1>",
        f"<p>with the draft {escape(str(pair['draft']))}</p>",
        f'<p class="soft">{escape(_facts(machine))}. {escape(report.made)}. '
        f"{escape(report.thermal or 'The machine does not tell its temperature')}.</p>",
        _verdict(report.verdict),
        _broken_off(report.broken_off),
        f'<div class="plots">{"".join(_plots(report.figures))}</div>',
        "<h2>Speed by kind of prompt</h2>",
        _speeds(report.figures),
        "<h2>Is it the same text?</h2>",
        _parity(report.parity),
        "<h2>A round, taken apart</h2>",
        _parts(report),
        "<h2>What was written</h2>",
        *(
            f"<details><summary>prompt {escape(name)}</summary><pre>{escape(text)}</pre></details>"
            for name, text in report.texts.items()
        ),
    ]
    return sheet(f"dflash-mlx bench: {pair['model']}", body)


def _facts(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['chip']}, {machine['device']}, BLAS {machine['blas']}, {machine['system']}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, dflash-mlx {machine['dflash_mlx']}"
    )


def _verdict(verdict: Mapping[str, Any]) -> str:
    off = "" if verdict["on"] else " off"
    return f'<div class="verdict{off}"><b>TuningResult.</b> {escape(str(verdict["why"]))}</div>'


def _broken_off(reason: str | None) -> str:
    if reason is None:
        return ""
    return f"<p><b>{escape(reason[:1].upper() + reason[1:])}: this is a part of the run.</b></p>"


def _plots(figures: Sequence[Figure]) -> Iterator[str]:
    whole = [figure for figure in figures if figure.kind == "all"]
    colours = {PLAIN: 5} | {
        figure.arm: colour
        for colour, figure in enumerate(figure for figure in whole if figure.arm != PLAIN)
    }
    kinds = list(dict.fromkeys(figure.kind for figure in figures if figure.kind != "all"))
    texts = [kind for kind in kinds if not kind.endswith(" tokens")]
    yield bars(
        "Speed by kind of prompt",
        "times plain decoding",
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
            "Speed by block width",
            "rows of a round",
            "times plain decoding",
            [
                Series(kind, _by_width(figures, kind), colour)
                for colour, kind in enumerate([*texts, "all"])
            ],
        )
    if len(kinds) - len(texts) > 1:
        yield lines(
            "Speed by length of the context",
            "tokens of the prompt",
            "times plain decoding",
            [Series(arm, _by_context(figures, arm), colours[arm]) for arm in colours],
        )
    yield lines(
        "Accepted by position in the block",
        "draft token",
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
    longest = max((length for figure in whole for length in figure.lengths), default=-1)
    yield bars(
        "Draft tokens accepted in a round",
        "share of drafted rounds",
        [str(length) for length in range(longest + 1)],
        [Series(figure.arm, _shares(figure), colours[figure.arm]) for figure in whole],
    )
    yield lines(
        "Speed along the answer",
        "tokens so far",
        "tokens per second",
        [Series(figure.arm, figure.curve, colours[figure.arm]) for figure in whole],
    )


def _ratios(figures: Sequence[Figure], arm: str, kinds: Sequence[str]) -> list[tuple[float, float]]:
    return [
        (kinds.index(figure.kind), figure.of_plain.median)
        for figure in figures
        if figure.arm == arm and figure.kind in kinds and figure.of_plain
    ]


def _by_context(figures: Sequence[Figure], arm: str) -> list[tuple[float, float]]:
    return sorted(
        (int(figure.kind.split()[0]), figure.of_plain.median)
        for figure in figures
        if figure.arm == arm and figure.kind.endswith(" tokens") and figure.of_plain
    )


def _shares(figure: Figure) -> list[tuple[float, float]]:
    rounds = sum(figure.lengths.values())
    return [(length, count / rounds) for length, count in figure.lengths.items()]


def _by_width(figures: Sequence[Figure], kind: str) -> list[tuple[float, float]]:
    return sorted(
        (int(figure.arm.split()[1]), figure.of_plain.median)
        for figure in figures
        if figure.kind == kind and figure.arm.startswith("block ") and figure.of_plain
    )


def _speeds(figures: Sequence[Figure]) -> str:
    rows = []
    for figure in sorted(figures, key=lambda item: (item.kind == "all", item.kind)):
        accepted = f"{figure.acceptance:.0%}" if figure.acceptance is not None else "-"
        rows.append(
            (
                figure.kind,
                figure.arm,
                spelled(figure.speed),
                spelled(figure.of_plain, 2, "x"),
                f"{figure.tokens_per_round:.2f}" if figure.tokens_per_round else "-",
                accepted,
                str(figure.speed.count),
            )
        )
    heads = ("kind", "arm", "tokens/s", "of plain", "tokens/round", "accepted", "answers")
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
    heads = ("kind", "arm", "prompt", "text", "parts at token", "top-two logit gap")
    return _table(heads, rows)


def _parts(report: Report) -> str:
    rows = [
        (
            figure.arm,
            "",
            ms(figure.draft_s),
            ms(figure.verify_s),
            ms(figure.overhead_s),
            f"{figure.of_bound:.0%}" if figure.of_bound else "-",
        )
        for figure in report.figures
        if figure.kind == "all" and figure.verify_s is not None
    ]
    heads = ("arm", "", "draft ms", "verify ms", "rest ms", "of the bound")
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
