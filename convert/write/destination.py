"""The output folder of a conversion: its path, its name, and the disk space for it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.sources.remote_shards import DISK_FULL
from dflash_mlx.convert.write.work_folder import download_folder, partial_folder
from dflash_mlx.errors import BadRequest, OutOfDisk
from dflash_mlx.hub.download import free_bytes
from dflash_mlx.system.paths import typed_path


def output_folder(config: ConvertConfig, jobs: Sequence[ConversionJob]) -> Path:
    """Return the output folder: the requested one, or a named one in the current folder.

    Raises:
        BadRequest: the output is inside a source, or a source is inside the output.
    """
    out = (typed_path(config.out) if config.out else Path.cwd() / default_name(jobs)).absolute()
    for job in jobs:
        source = job.source.location.folder.resolve()
        if job.source.location.file is None and out.resolve().is_relative_to(source):
            raise BadRequest(f"{out} is inside its source {source}; choose another folder with -o")
        if source.is_relative_to(out.resolve()) and out.exists():
            raise BadRequest(f"{out} contains its own source; choose another folder with -o")
    return out


def default_name(jobs: Sequence[ConversionJob]) -> str:
    """Return a folder name made of the source's name, the recipe and the bits."""
    first = jobs[0]
    last = first.source.name.rsplit("/", 1)[-1].removesuffix(".gguf")
    name = re.sub(r"[^\w.-]+", "-", last).strip(".-") or "model"
    recipe = first.recipe
    if recipe is None:
        return f"{name}-mlx"
    base = recipe.base
    bits = f"{base.bits}bit" if base and base.mode == "affine" else base.mode if base else "mixed"
    return f"{name}-{bits}" if recipe.name == "uniform" else f"{name}-{recipe.name}-{bits}"


def disk_bytes(jobs: Sequence[ConversionJob]) -> int:
    """Return the bytes that a conversion needs on the disk: the results and one shard at hand."""
    shards = [job.source.shards.largest_download() for job in jobs if job.source.shards]
    return sum(job.plan.n_bytes for job in jobs) + max(shards, default=0)


def _used_bytes(path: Path) -> int:
    """Return the bytes that a file, which may be sparse, has on the disk."""
    status = path.stat()
    return min(status.st_size, status.st_blocks * 512)  # POSIX counts blocks of 512 bytes


@contextmanager
def disk_reserved(out: Path, jobs: Sequence[ConversionJob]) -> Iterator[None]:
    """Check that the result fits on the disk, and report a disk that fills up in between.

    Raises:
        OutOfDisk: the disk has too little space, or became full; finished files are kept.
    """
    needed = disk_bytes(jobs)
    present = sum(
        _used_bytes(path)
        for folder in (partial_folder(out), download_folder(out))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    if needed - present > (free := free_bytes(out)):
        raise OutOfDisk(
            f"{out} needs {needed - present} more bytes and its disk has {free} free; free some "
            "space, or choose another disk with -o"
        )
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OutOfDisk(
            f"the disk of {out} is full; free some space and run the same command again, finished "
            "files are kept"
        ) from error
