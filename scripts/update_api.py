"""Write docs/api.md: signatures and docstrings of the public API, read from the source by griffe.

    python scripts/update_api.py

tests/test_docs.py fails when the page differs from the source.
"""

import re
from pathlib import Path
from typing import Any

from griffe import Alias, GriffeLoader, Object, Parser
from griffe2md import ConfigDict, render_object_docs

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
INTRODUCTION = """# Python API

Everything that `import dflash_mlx` offers. This page is generated from the docstrings by
`python scripts/update_api.py`; do not edit it. Importing `dflash_mlx` imports neither MLX nor any
model code; `load` does.
"""
OPTIONS: dict[str, Any] = {
    "docstring_section_style": "list",
    "filters": ["!^_"],
    "heading_level": 2,
    "members_order": "source",
    "separate_signature": True,
    "show_root_full_path": False,
    "show_root_members_full_path": False,
    "show_signature_annotations": True,
    "show_if_no_docstring": False,
    "show_object_full_path": False,
    "show_bases": True,
    "show_submodules": False,
    "summary": False,
}


def public() -> list[Object | Alias]:
    """Return the public classes and functions in the order of `__all__`."""
    loader = GriffeLoader(search_paths=[ROOT], docstring_parser=Parser.google)
    package = loader.load("dflash_mlx")
    loader.resolve_aliases(external=False)
    members = [package[name] for name in sorted(package.exports or [])]
    members += [package[f"openai.client.{name}"] for name in ("Client", "AsyncClient")]
    return [
        member.final_target if isinstance(member, Alias) else member
        for member in members
        if member.is_class or member.is_function
    ]


def page() -> str:
    """Return the page."""
    config = ConfigDict(**OPTIONS)
    parts = [_plain(render_object_docs(member, config)).strip() for member in public()]
    return INTRODUCTION + "\n" + "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Return the text with types in backticks, not as links to anchors that no page has."""
    text = re.sub(r"\[([^\[\]]+)\]\(#[\w.]+\)", r"\1", text)
    return re.sub(r"<code>(.*?)</code>", r"`\1`", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
