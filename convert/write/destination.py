"""Where a conversion puts its result: not into its own source, and onto a disk with room."""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.write.work_folder import partial_folder
from dflash_mlx.errors import BadRequest, OutOfDisk
from dflash_mlx.hub.download import free_bytes
from dflash_mlx.system.paths import typed_path


def output_folder(config: ConvertConfig, jobs: Sequence[ConversionJob]) -> Path:
    """Return the output folder: the one asked for, or one named for what it will hold, here.

    Raises:
        BadRequest: it lies inside a source, or a source inside it.
    """
    out = (typed_path(config.out) if config.out else Path.cwd() / default_name(jobs)).absolute()
    for job in jobs:
        source = job.source.located.folder.resolve()
        if job.source.located.file is None and out.resolve().is_relative_to(source):
            raise BadRequest(f"{out} is inside its source {source}; choose another folder with -o")
        if source.is_relative_to(out.resolve()) and out.exists():
            raise BadRequest(f"{out} holds its own source; choose another folder with -o")
    return out


def default_name(jobs: Sequence[ConversionJob]) -> str:
    """Return a folder's name: the source's, and what became of it."""
    first = jobs[0]
    said = first.source.name.rsplit("/", 1)[-1].removesuffix(".gguf")
    name = re.sub(r"[^\w.-]+", "-", said).strip(".-") or "model"
    recipe = first.recipe
    if recipe is None:
        return f"{name}-mlx"
    base = recipe.base
    width = f"{base.bits}bit" if base and base.mode == "affine" else base.mode if base else "mixed"
    return f"{name}-{width}" if recipe.name == "uniform" else f"{name}-{recipe.name}-{width}"


@contextmanager
def disk_reserved(out: Path, jobs: Sequence[ConversionJob]) -> Iterator[None]:
    """Check for room, and turn a disk that fills up meanwhile into an error that says what to do.

    Raises:
        OutOfDisk: there is too little room, or it went; what was written so far is kept.
    """
    needed = sum(job.plan.n_bytes for job in jobs)
    begun = partial_folder(out)
    here = sum(path.stat().st_size for path in begun.rglob("*.safetensors"))
    if needed - here > (free := free_bytes(out)):
        raise OutOfDisk(
            f"{out} needs {needed - here} bytes and its disk has {free} free; make room, or choose "
            "another disk with -o"
        )
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OutOfDisk(
            f"the disk of {out} is full; make room and run the same command again, finished files "
            "are kept"
        ) from error
