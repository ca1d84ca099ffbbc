"""The curves of a run as one HTML page, from its history: against steps, and tokens learned from.

A line of the history is a stretch of training (`loss`, `accepted`, `tokens_per_round` over its
own anchors, `learning_rate`) or a measurement (`sequential`, `anchors` over held-out text).
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from dflash_mlx.charts.page import html_page
from dflash_mlx.charts.svg import Series, bars, lines

_POINTS = 200
_STEPS, _TOKENS = ("step", "steps"), ("tokens", "tokens learned from")

History = Sequence[Mapping[str, Any]]


def curves(title: str, facts: str, history: History) -> str:
    """Return the page; `facts` is a line on what was trained and how."""
    trained = _thinned([line for line in history if "loss" in line])
    measured = [line for line in history if "sequential" in line]
    plots = "".join(_plots(trained, measured))
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(facts)}</p>',
        f'<div class="plots">{plots}</div>' if plots else "<p>Nothing was logged yet.</p>",
        _words(measured),
    ]
    return html_page(title, body)


def _plots(trained: History, measured: History) -> Iterator[str]:
    for axis, label in (_STEPS, _TOKENS):
        yield lines("Loss", label, "loss", [Series("loss", _points(trained, axis, "loss"), 0)])
        yield lines(
            "Tokens per round",
            label,
            "tokens per round",
            [
                Series("decoding held-out prompts", _part(measured, axis, "sequential"), 2),
                Series("held-out anchors", _part(measured, axis, "anchors"), 1),
                Series("anchors in training", _points(trained, axis, "tokens_per_round"), 0),
            ],
        )
        yield lines("Accepted by position", label, "share", _positions(trained, axis))
    rate = [Series("learning rate", _points(trained, "step", "learning_rate"), 3)]
    yield lines("Learning rate", "steps", "learning rate", rate)
    if measured:
        yield from _last(measured[-1]["sequential"])


def _last(found: Mapping[str, Any]) -> Iterator[str]:
    """Plot the last measurement by kind and by accepted length."""
    kinds = list(found["by_kind"])
    points = [(at, found["by_kind"][kind]) for at, kind in enumerate(kinds)]
    yield bars(
        "Tokens per round by kind, decoding", "tokens per round", kinds, [Series("", points)]
    )
    lengths = {int(n): count for n, count in found["accepted_lengths"].items()}
    rounds = sum(lengths.values())
    shares = [(n, count / rounds) for n, count in lengths.items()]
    labels = [str(n) for n in range(max(lengths, default=-1) + 1)]
    yield bars("Draft tokens accepted in a round", "share of rounds", labels, [Series("", shares)])


def _words(measured: History) -> str:
    if not measured:
        return ""
    found = measured[-1]["sequential"]
    return (
        f"<p>Measured last at step {measured[-1]['step']}: {found['tokens_per_round']:.2f} tokens "
        f"a round over {found['rounds']} rounds of greedy decoding with blocks of "
        f"{found['block']}. Anchors are drawn evenly and flatter: decoding takes many rounds where "
        "the draft is wrong.</p>"
    )


def _points(rows: History, axis: str, key: str) -> list[tuple[float, float]]:
    return [(row[axis], row[key]) for row in rows if row[key] == row[key]]


def _part(rows: History, axis: str, part: str) -> list[tuple[float, float]]:
    return [(row[axis], row[part]["tokens_per_round"]) for row in rows if row.get(part)]


def _positions(trained: History, axis: str) -> list[Series]:
    """Return a line for each of the first six draft tokens."""
    count = min((len(row["accepted"]) for row in trained), default=0)
    return [
        Series(str(at + 1), [(row[axis], row["accepted"][at]) for row in trained], at)
        for at in range(min(count, 6))
    ]


def _thinned(rows: History) -> list[dict[str, Any]]:
    """Return at most `_POINTS` rows, each the mean of as many, the last ones among them."""
    size = -(-len(rows) // _POINTS) or 1
    groups = [rows[max(0, end - size) : end] for end in range(len(rows), 0, -size)]
    return [_mean(group) for group in reversed(groups)]


def _mean(rows: History) -> dict[str, Any]:
    """Return the last of `rows` with the means of what varies."""
    means = {key: fmean(row[key] for row in rows) for key in ("loss", "tokens_per_round")}
    columns = zip(*(row["accepted"] for row in rows), strict=True)
    return {**rows[-1], **means, "accepted": [fmean(column) for column in columns]}
