"""User-visible text and documents are plain technical English, with the glossary's names."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"])
CODE = sorted(
    file for folder in ("dflash_mlx", "metal", "convert") for file in (ROOT / folder).rglob("*.py")
)

PHRASES = [
    # aphorisms and inversions
    r"what it agrees with is kept",
    r"nothing silent",
    r"is had\b",
    r"\bis no (number|text|word|model|json|json object)\b",
    r"\b(nobody|somebody)\b",
    r"\banew\b",
    r"\breckon(ed|s|ing)?\b",
    r"\ba word on\b",
    r"\bstands there\b",
    r"\beach step is said\b",
    r"\bsaid to be\b",
    r"\bmost tokens of an answer\b",
    r"\bleast share of the best token\b",
    r"\bto go on from\b",
    r"\bgive up a run\b",
    r"\bconversation is forgotten\b",
    r"\bof a block's rows in the loss\b",
    r"\bbroken off\b",
    # names that the glossary replaces
    r"\brows of a round\b",
    r"\bdecodes? plainly\b",
    r"\bparked?\b",
    r"\b(of|in) plain( decoding's)?( speeds?)?[.,;:)]",
    r"\bin plain speeds?\b",
    r"\bplain steps? runs? on\b",
    r"\binvented texts?\b",
    r"\b(width control(ler)?)\b",
    r"\bhazards?\b",
    r"\b(the books|ledger|at stake)\b",
    r"\b(contests?|entrants?|(?<!data )races?|raced|racing)\b",
    r"\btransplant(s|ed)?\b",
    r"\btaps?\b",
    r"\btapped\b",
    r"\b(walk|walks|walked)\b(?! (the|a) (tree|directory|folder))",
    r"\bbehind the (anchor|prompt|last|answer|context)\b",
    r"\bthink first\b",
    r"\bpenalty_context\b",
    r"\bprefill_rows\b",
    r"\bend_ids\b",
]
PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)


def texts(file):
    """Strings of a Python file, docstrings and comments included, with their line numbers."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line
    for number, line in enumerate(source.splitlines(), 1):
        if (at := re.search(r"(^|\s)# (.*)", line)) is not None:
            yield number, at[2]


def found(lines):
    return [
        f"{number}: {hit[0]!r} in {line.strip()[:90]!r}"
        for number, line in lines
        if (hit := PATTERN.search(line)) is not None
    ]


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(ROOT)))
def test_strings_and_comments_are_plain_english(file):
    """A private dialect made every sentence a riddle to engineers who know the field."""
    assert found(texts(file)) == []


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_documents_are_plain_english(file):
    """The same for what is read first."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    # the changelog's table of renames has the old names
    renames = file.name == "CHANGELOG.md"
    assert found((n, line) for n, line in lines if not (renames and line.startswith("|"))) == []


KERNELS = sorted([*ROOT.glob("metal/*.metal"), *ROOT.glob("metal/*.h")])


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.name)
def test_kernel_comments_are_plain_english(file):
    """Kernels are read more often than other files."""
    comments = [
        (number, at[1])
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if (at := re.search(r"//\s*(.*)", line)) is not None
    ]
    assert found(comments) == []


def classes():
    """Public classes with the modules that define them."""
    where: dict[str, list[str]] = {}
    for file in CODE:
        if file.is_relative_to(ROOT / "dflash_mlx/metal") or file.is_relative_to(
            ROOT / "dflash_mlx/convert"
        ):
            continue  # links to the folders at the top
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    return where


def test_a_public_type_name_is_defined_once():
    """Five classes called `Progress` meant five things."""
    assert {name: files for name, files in classes().items() if len(files) > 1} == {}
