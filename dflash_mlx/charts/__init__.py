"""HTML pages and SVG charts that load no other file.

It must not know what they show.
"""

__all__ = [
    "page",
    "svg",
]
