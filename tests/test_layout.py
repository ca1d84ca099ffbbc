"""The shape of the package: imports point one way, one place waits, nothing prints."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"dflash_mlx": ROOT / "dflash_mlx"}
FOLDERS |= {"dflash_mlx.metal": ROOT / "metal", "dflash_mlx.convert": ROOT / "convert"}

LEVELS = (
    # the ground: no models, no rows
    ("errors", "config", "blas", "json_file", "typed_path", "metal"),
    # forward passes, rows, pure functions over them
    (
        *("models", "cache", "sampling", "constraints", "accept", "history", "compute", "memory"),
        *("readback", "rounds", "weights"),
    ),
    # the loop and what consumes its rounds
    (
        *("width", "stopwatch", "decode", "prefill"),
        *("stats", "marks", "text", "thinking"),
    ),
    # names, files and conversations
    (
        *("cards", "data_file", "doctor", "gguf", "hub", "feed", "tokenizer"),
        *("loading", "loaded", "worker", "answer", "request", "session", "engine"),
        *("calibrate", "cost_store", "learning", ""),
        *("kernels", "racing"),
    ),
    # applications of the library
    ("convert", "bench", "simulate", "server", "train"),
    # the edge
    ("commands",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def modules():
    """Every module of the project by its import name."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = file
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


def noun(name):
    """The part of a module's name that has a level."""
    return name.removeprefix("dflash_mlx").removeprefix(".").partition(".")[0]


def test_every_module_has_a_level():
    """A file outside the table could import anything."""
    assert sorted({noun(name) for name in MODULES} - LEVEL.keys()) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_only_go_down(name):
    """A lower layer that knows an upper one cannot be understood, or reused, alone."""
    if name == "dflash_mlx":
        return  # the public face names what it offers
    upward = [other for other in GRAPH[name] if LEVEL[noun(other)] > LEVEL[noun(name)]]
    assert upward == []


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
    if noun(name) in {*LEVELS[1], *LEVELS[2], "request", "session"} - {"readback", "compute"}
    and "import mlx" in file.read_text()
]


@pytest.mark.parametrize("name", sorted(DECODE_PATH))
def test_only_readback_waits_for_the_device(name):
    """Every hidden wait costs a round trip per round; four of them cost a fifth of the speed."""
    waits = {".item", ".tolist", "mx.eval", "mx.async_eval", "mx.synchronize", ".block_until_ready"}
    if name == "dflash_mlx.memory":
        waits -= {"mx.synchronize"}  # before the wired limit goes back, after the last round
    assert sorted(waits & set(calls(MODULES[name]))) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_library_never_prints(name):
    """stdout belongs to the model's text."""
    if noun(name) != "commands":
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
