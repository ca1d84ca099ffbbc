"""What the documents say is what the program does."""

import importlib.util
import re
from pathlib import Path

import pytest

from dflash_mlx.pairs import registry

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def script(name):
    """A program of `scripts/`, imported."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["update_cli", "update_macs"])
def test_generated_pages_are_up_to_date(name):
    """A README listed a flag that the program did not have."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), f"python scripts/{name}.py"


def test_the_readme_stays_short():
    """A README of 480 lines was read by no one to its end."""
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("document", sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("*.md")))
def test_links_between_documents_hold(document):
    """A page that is linked and not there."""
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_nicknames_in_the_readme_are_known():
    """The command a README begins with has to work."""
    for name in re.findall(r"--model ([\w.-]+)", README):
        assert registry.find(name) or name.startswith("<"), name


def test_no_document_promises_bit_identity():
    """Each token is the argmax of the pass that verified it; on Metal that is the contract."""
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        assert "bit-identical" not in document.read_text(encoding="utf-8").lower() or (
            document.name in {"log.md", "kernels.md", "adding-a-family.md"}
        )
