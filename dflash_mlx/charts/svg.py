"""Bar and line plots as inline SVG.

Colours come from the style sheet of the page (classes `s0`, `s1`, ...), light or dark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 620, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 14, 40  # margins that fit the labels at 12 px


@dataclass(frozen=True)
class Series:
    """A named list of points (x, y), in one of six colours."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0


def lines(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """Return a line plot, or '' if no series has points."""
    nonempty = [each for each in series if each.points]
    if not nonempty:
        return ""
    xs = [x for each in nonempty for x, _ in each.points]
    x_of = _scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    top = max(y for each in nonempty for _, y in each.points)
    y_of = _scale(0, top * 1.08 or 1, _HEIGHT - _BOTTOM, _TOP)
    min_step = 1.0 if all(float(x).is_integer() for x in xs) else 0.0  # whole xs, whole ticks
    parts = _axes(x_label, y_label, _ticks(min(xs), max(xs), min_step), _ticks(0, top), x_of, y_of)
    for each in nonempty:
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in each.points)
        parts.append(f'<polyline class="line s{each.colour % 6}" points="{path}"/>')
        parts += [
            f'<circle class="dot s{each.colour % 6}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5">'
            f"<title>{escape(each.name)}: {x:g}, {y:.3g}</title></circle>"
            for x, y in each.points
        ]
    return _figure(title, parts, nonempty)


def bars(
    title: str,
    y_label: str,
    labels: Sequence[str],
    series: Sequence[Series],
    mark: float | None = None,
) -> str:
    """Return a grouped bar plot; x of a point is the index of its label. `mark` draws a line."""
    nonempty = [each for each in series if each.points]
    if not nonempty or not labels:
        return ""
    top = max(y for each in nonempty for _, y in each.points)
    y_of = _scale(0, top * 1.08 or 1, _HEIGHT - _BOTTOM, _TOP)
    group = (_WIDTH - _LEFT - _RIGHT) / len(labels)
    wide = group * 0.8 / len(nonempty)
    parts = _axes("", y_label, [], _ticks(0, top), lambda x: x, y_of)
    for index, each in enumerate(nonempty):
        for at, value in each.points:
            x = _LEFT + at * group + group * 0.1 + index * wide
            y = y_of(value)
            parts.append(
                f'<rect class="bar s{each.colour % 6}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - y:.1f}"><title>{escape(each.name)}, '
                f"{escape(labels[int(at)])}: {value:.3g}</title></rect>"
            )
    if mark is not None and mark <= top:
        parts.append(f'<path class="mark" d="M{_LEFT} {y_of(mark):.1f}H{_WIDTH - _RIGHT}"/>')
    for at, label in enumerate(labels):
        x = _LEFT + (at + 0.5) * group
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
    return _figure(title, parts, nonempty if len(nonempty) > 1 else [])


def _figure(title: str, parts: Sequence[str], legend_of: Sequence[Series]) -> str:
    legend = "".join(
        f'<span class="key"><i class="s{each.colour % 6}"></i>{escape(each.name)}</span>'
        for each in legend_of
    )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        f'<p class="legend">{legend}</p></figure>'
    )


def _axes(
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> list[str]:
    floor = _HEIGHT - _BOTTOM
    parts = []
    for y in y_ticks:
        at = y_of(y)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in x_ticks:
        parts.append(
            f'<text class="tick" x="{x_of(x):.1f}" y="{floor + 16}" '
            f'text-anchor="middle">{x:g}</text>'
        )
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{_WIDTH - _RIGHT}"/>')
    parts.append(
        f'<text class="label" x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
    )
    middle = (_TOP + floor) / 2
    parts.append(
        f'<text class="label" x="14" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.0f})">{escape(y_label)}</text>'
    )
    return parts


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(low: float, high: float, min_step: float = 0.0) -> list[float]:
    """Return about five round numbers from `low` to `high`, at least `min_step` apart."""
    span = high - low
    if span <= 0:
        return [low]
    power = 1.0
    while span / power > 10:
        power *= 10
    while span / power < 1:
        power /= 10
    step = next(power * factor for factor in (0.2, 0.5, 1, 2) if span / (power * factor) <= 6)
    step = max(step, min_step)
    first = -(-low // step) * step
    return [round(first + step * k, 10) for k in range(int((high - first) / step + 1e-9) + 1)]
