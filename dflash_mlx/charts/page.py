"""Wraps content into one HTML page with a style sheet; the page loads no other file."""

from collections.abc import Iterable
from html import escape

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


def html_page(title: str, body: Iterable[str]) -> str:
    """Return an HTML page; `body` is HTML that uses the classes of the style sheet."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}{_COLOURS}</style></head><body>{''.join(body)}</body></html>\n"
    )
