"""A report as one HTML page that needs nothing else: no script, no font, no network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dflash_mlx.bench.arms import AUTO, PLAIN
from dflash_mlx.bench.plots import Series, bars, lines
from dflash_mlx.bench.report import ms, spelled
from dflash_mlx.bench.summary import Figure, Report

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --rule: #d9dee5; --paper: #fff; --pane: #f6f8fa;
  --c0: #2f6fde; --c1: #d9730d; --c2: #2a9d6f; --c3: #b0387a; --c4: #7a5cd6; --c5: #8a6d1d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9f0; --soft: #9aa6b5; --rule: #343d49;
  --paper: #14181e; --pane: #1c222b; --c0: #6ea0ff; --c1: #ffa057; --c2: #5fd0a0;
  --c3: #f07ab8; --c4: #a993ff; --c5: #d6b65c; } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 1340px; padding: 28px 24px 60px }
h1 { font-size: 22px; margin: 0 0 2px } h2 { font-size: 17px; margin: 34px 0 10px }
p { margin: 4px 0 } .soft { color: var(--soft) }
.verdict { background: var(--pane); border-left: 4px solid var(--c2); padding: 12px 16px;
  margin: 18px 0; font-size: 16px } .verdict.off { border-color: var(--c1) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 22px }
figure { margin: 0; background: var(--pane); padding: 12px 14px 8px; border-radius: 6px }
figcaption { font-weight: 600; margin-bottom: 4px }
svg { width: 100%; height: auto; display: block }
.legend { color: var(--soft); font-size: 13px; min-height: 8px }
.key { margin-right: 14px; white-space: nowrap }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { padding: 4px 14px 4px 0; text-align: right; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
tr.auto td { font-weight: 600 } .wide { overflow-x: auto }
.tick { font-size: 11px; fill: var(--soft) } .label { font-size: 12px; fill: var(--soft) }
.grid { stroke: var(--rule); stroke-width: 1 } .axis { stroke: var(--soft); fill: none }
.mark { stroke: var(--ink); stroke-dasharray: 4 3 }
.line { fill: none; stroke-width: 2 } pre { white-space: pre-wrap; background: var(--pane);
  padding: 10px 14px; border-radius: 6px; font-size: 13px; max-height: 260px; overflow-y: auto }
"""
_COLOURS = "".join(
    f".s{n}.line{{stroke:var(--c{n})}}.s{n}.dot,.s{n}.bar{{fill:var(--c{n})}}"
    f".key .s{n}{{background:var(--c{n})}}"
    for n in range(6)
)


def page(report: Report) -> str:
    """Return the report as HTML."""
    machine, pair = report.machine, report.pair
    body = [
        f"<h1>{escape(str(pair['model']))}</h1>",
        f"<p>with the draft {escape(str(pair['draft']))}</p>",
        f'<p class="soft">{escape(_facts(machine))}. {escape(report.made)}. '
        f"{escape(report.thermal or 'The machine does not tell its temperature')}.</p>",
        _verdict(report.verdict),
        "" if report.complete else "<p><b>Interrupted: this is a part of the run.</b></p>",
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
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>dflash-mlx bench: {escape(str(pair['model']))}</title>"
        f"<style>{_STYLE}{_COLOURS}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _facts(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['chip']}, {machine['device']}, BLAS {machine['blas']}, {machine['system']}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, dflash-mlx {machine['dflash_mlx']}"
    )


def _verdict(verdict: Mapping[str, Any]) -> str:
    off = "" if verdict["on"] else " off"
    return f'<div class="verdict{off}"><b>Verdict.</b> {escape(str(verdict["why"]))}</div>'


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
            f"{share:.0%} of the {report.memory_bytes_per_s / 1e9:.1f} GB/s of a copy."
        )
    return (_table(heads, rows) if rows else "") + f"<p>{escape(' '.join(words))}</p>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr{' class=auto' if row[1] == AUTO else ''}>{cells}</tr>")
    return f'<div class="wide"><table><tr>{top}</tr>{"".join(lines)}</table></div>'
