"""Converts target and draft checkpoints into quantized MLX folders, in bounded memory.

It must not know the command line, threads of others or models that answer requests.
"""

from collections.abc import Sequence

from dflash_mlx.convert.check.verification import verify_model
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.outcome import ConversionOutcome
from dflash_mlx.convert.plan.job import ConversionJob, fingerprint, plan_job
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback, ignore_progress
from dflash_mlx.convert.sources.pairing import open_sources
from dflash_mlx.convert.write.cards import write_cards
from dflash_mlx.convert.write.destination import disk_reserved, output_folder
from dflash_mlx.convert.write.shards import write_weights
from dflash_mlx.convert.write.work_folder import WorkFolder, check_replaceable
from dflash_mlx.system.paths import typed_path


def plan_conversion(
    config: ConvertConfig, watch: ProgressCallback = ignore_progress
) -> list[ConversionJob]:
    """Return what a conversion would do, the target first, nothing written.

    Raises:
        DFlashError: the source cannot be converted as asked; the message says what to do.
    """
    if config.out:
        check_replaceable(typed_path(config.out), config.force)
    sources = open_sources(config, watch)
    return [plan_job(source, config, folder, watch) for folder, source in sources.items()]


def convert(
    config: ConvertConfig,
    watch: ProgressCallback = ignore_progress,
    jobs: Sequence[ConversionJob] | None = None,
) -> ConversionOutcome:
    """Convert, and return where the result lies and how much was lost.

    `jobs` is a plan made before by `plan_conversion` with the same configuration. Stopped at any
    point, the same call goes on where it stopped.

    Raises:
        DFlashError: the source is bad, or the output may not be written; nothing is left behind.
        OutOfDisk: the disk is full; the call resumes after room was made.
    """
    jobs = list(jobs or plan_conversion(config, watch))
    out = output_folder(config, jobs)
    with disk_reserved(out, jobs), WorkFolder(out, fingerprint(jobs, config), config.force) as work:
        for job in jobs:
            write_weights(job, work, watch)
        watch(ConversionProgress("files", 0, 1))
        write_cards(jobs, config, work.path, work.finished)
        checks = (
            [verify_model(job, jobs, work.path, watch) for job in jobs] if config.verify else []
        )
        outcome = ConversionOutcome.of(jobs, out, checks)
        outcome.write(work.path)
        watch(ConversionProgress("publish", 0, 1))
        work.publish()
    watch(ConversionProgress("publish", 1, 1))
    return outcome
