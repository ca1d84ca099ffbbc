"""Converts target and draft checkpoints into quantized MLX folders, in bounded memory.

It must not know the command line, threads of others or models that answer requests.
"""

from collections.abc import Sequence

from dflash_mlx.convert.cards import write_cards
from dflash_mlx.convert.job import Job, fingerprint, make_job
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.outcome import Outcome, planned
from dflash_mlx.convert.pairing import open_sources
from dflash_mlx.convert.place import enough_disk, output_folder
from dflash_mlx.convert.progress import Progress, Watcher, unwatched
from dflash_mlx.convert.shards import write_weights
from dflash_mlx.convert.verify import verify
from dflash_mlx.convert.workfolder import WorkFolder, check_replaceable
from dflash_mlx.system.paths import typed_path

__all__ = [
    "ConvertConfig",
    "Job",
    "Outcome",
    "Progress",
    "convert",
    "plan_conversion",
    "planned",
    "upload",
]


def plan_conversion(config: ConvertConfig, watch: Watcher = unwatched) -> list[Job]:
    """Return what a conversion would do, the target first, nothing written.

    Raises:
        DFlashError: the source cannot be converted as asked; the message says what to do.
    """
    if config.out:
        check_replaceable(typed_path(config.out), config.force)
    sources = open_sources(config, watch)
    return [make_job(source, config, folder, watch) for folder, source in sources.items()]


def convert(
    config: ConvertConfig, watch: Watcher = unwatched, jobs: Sequence[Job] | None = None
) -> Outcome:
    """Convert, and return where the result lies and how much was lost.

    `jobs` is a plan made before by `plan_conversion` with the same configuration. Stopped at any
    point, the same call goes on where it stopped.

    Raises:
        DFlashError: the source is bad, or the output may not be written; nothing is left behind.
        OutOfDisk: the disk is full; the call resumes after room was made.
    """
    jobs = list(jobs or plan_conversion(config, watch))
    out = output_folder(config, jobs)
    with enough_disk(out, jobs), WorkFolder(out, fingerprint(jobs, config), config.force) as work:
        for job in jobs:
            write_weights(job, work, watch)
        watch(Progress("files", 0, 1))
        write_cards(jobs, config, work.path, work.finished)
        checks = [verify(job, jobs, work.path, watch) for job in jobs] if config.verify else []
        outcome = Outcome.of(jobs, out, checks)
        outcome.write(work.path)
        watch(Progress("publish", 0, 1))
        work.publish()
    watch(Progress("publish", 1, 1))
    return outcome
