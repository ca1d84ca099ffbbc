"""The shape of the package: imports point down, one file waits for the device, nothing prints."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dflash_mlx"

LEVELS = (
    "errors",
    "config",
    "system",
    "metal",
    "cache",
    "prefix_cache",
    "models",
    "kernels",
    "gguf",
    "pairs",
    "hub",
    "loading",
    "proposals",
    "decode",
    "controller",
    "engine",
    "openai",
    "convert",
    "charts",
    "bench",
    "simulate",
    "doctor",
    "train",
    "commands",
)
"""The folders and the two modules of the root, lowest first. docs/structure.md shows this table."""

LEVEL = {name: level for level, name in enumerate(LEVELS)}


def modules() -> dict[str, Path]:
    """Every module of the package by its import name."""
    files = [
        file for folder in PACKAGE.iterdir() if folder.is_dir() for file in folder.rglob("*.py")
    ]
    found = {}
    for file in [*PACKAGE.glob("*.py"), *files]:
        name = ".".join(["dflash_mlx", *file.relative_to(PACKAGE).with_suffix("").parts])
        found[name.removesuffix(".__init__")] = file
    return found


MODULES = modules()


def imports(file):
    """Modules of ours that a file imports: at the top, late, or for types only."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                yield longer if longer in MODULES else node.module


GRAPH = {
    name: {found for found in imports(file) if found in MODULES and found != name}
    for name, file in MODULES.items()
}


def folder(name):
    """The folder, or the module of the root, that a module belongs to."""
    return name.removeprefix("dflash_mlx").removeprefix(".").partition(".")[0]


def exported(package):
    """What the `__init__` of a folder lists in `__all__`; without a list, nothing."""
    for node in ast.parse(MODULES[package].read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_the_root_holds_the_public_face_only():
    """37 modules once lay flat in the root, and nobody saw which of them belonged together."""
    assert sorted(file.name for file in PACKAGE.glob("*.py")) == [
        "__init__.py",
        "config.py",
        "errors.py",
    ]


def test_the_document_shows_this_table():
    """A page about the structure that has moved on misleads a newcomer."""
    page = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    table = page.split("<!-- levels -->")[1].split("<!-- /levels -->")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == LEVELS


def test_files_named_in_the_structure_exist():
    """A file that was renamed once stayed in the README for months."""
    page = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+\.py)`", page):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


def test_every_folder_has_a_level():
    """A folder outside the table could import anything."""
    assert sorted({folder(name) for name in MODULES} - LEVEL.keys()) == [""]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_only_go_down(name):
    """A lower layer that knows an upper one cannot be understood, or reused, alone."""
    if name == "dflash_mlx":
        return  # the public face names what it offers
    above = [
        other
        for other in GRAPH[name]
        if other != "dflash_mlx" and LEVEL[folder(other)] > LEVEL[folder(name)]
    ]
    assert above == []


def test_a_folder_is_imported_through_what_it_exports():
    """Without a list of public modules, every file of a folder becomes its interface."""
    private = []
    for name in MODULES:
        for other in GRAPH[name]:
            package = other
            while "." in package:
                package, _, part = package.rpartition(".")
                inside = f"{name}.".startswith(f"{package}.")
                if package != "dflash_mlx" and not inside and part not in exported(package):
                    private.append(f"{name} imports {other}, which {package} does not export")
    assert private == []


@pytest.mark.parametrize(
    "name", sorted({folder(name) for name in MODULES} - {"", "errors", "config"})
)
def test_a_folder_says_what_it_is_for(name):
    """The first place where a reader looks is the folder's `__init__`."""
    docstring = ast.get_docstring(ast.parse(MODULES[f"dflash_mlx.{name}"].read_text()))
    assert docstring is not None
    assert "must not know" in docstring
    assert len(docstring.splitlines()) <= 4


def test_no_import_is_circular():
    """Cycles hidden by late or type-only imports are cycles all the same."""
    done, path = set(), []

    def visit(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        path.append(name)
        for other in sorted(GRAPH[name]):
            if other != "dflash_mlx":
                visit(other)
        done.add(path.pop())

    for name in MODULES:
        visit(name)


def calls(file):
    """Names of what a file calls: `f` for `f()`, `.g` for `x.g()`, `mx.g` for `mx.g()`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}"
                if isinstance(node.func.value, ast.Name):
                    yield f"{node.func.value.id}.{node.func.attr}"


DECODE_PATH = [
    name
    for name, file in MODULES.items()
    if folder(name) in {"cache", "models", "decode", "controller", "engine"}
    and name != "dflash_mlx.decode.readback"
    and "import mlx" in file.read_text()
]


@pytest.mark.parametrize("name", sorted(DECODE_PATH))
def test_only_readback_waits_for_the_device(name):
    """Every hidden wait costs a round trip per round; four of them cost a fifth of the speed."""
    waits = {".item", ".tolist", "mx.eval", "mx.async_eval", "mx.synchronize", ".block_until_ready"}
    assert sorted(waits & set(calls(MODULES[name]))) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_library_never_prints(name):
    """stdout belongs to the model's text."""
    if folder(name) != "commands":
        assert "print" not in set(calls(MODULES[name]))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_nothing_reads_the_environment(name):
    """A switch in the environment is a second configuration that nobody sees."""
    text = MODULES[name].read_text()
    for convention in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "NO_COLOR", "TERM"):
        text = text.replace(f'os.environ.get("{convention}")', "")  # the system's, not ours
    assert "os.environ" not in text
    assert "getenv" not in text


@pytest.mark.parametrize("name", sorted(MODULES))
def test_code_folders_are_imported_by_their_shipped_name(name):
    """`import metal` works in a checkout and gives a second copy of every object."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {"metal", "convert"} & {found.partition(".")[0] for found in names}


def test_import_is_light_and_touches_no_device():
    """A tool that imports us should not wait for MLX, transformers or the GPU."""
    heavy = ("mlx", "mlx_lm", "transformers", "numpy", "huggingface_hub", "typer", "rich")
    code = f"import sys, dflash_mlx; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert found.stdout.strip() == "[]"


def test_functions_stay_short():
    """The bad codebases of this field differ from the good ones in their longest functions."""
    long = []
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno > 70:
                long.append(f"{name}.{node.name}: {node.end_lineno - node.lineno} lines")
    assert long == []


def test_files_hold_one_idea():
    """Past 300 lines a second idea hides inside."""
    lengths = {name: len(file.read_text().splitlines()) for name, file in MODULES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > 320} == {}
