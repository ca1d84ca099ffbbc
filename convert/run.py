"""Plans and runs a whole conversion: open the sources, plan, write, check, publish.

It must not know how any of these steps works.
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
    """Return the jobs of a conversion, the target's first. Nothing is written.

    Raises:
        DFlashError: the source cannot be converted with these options; the message says what to
            change.
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
    """Run a conversion and return its output folder and the results of the check.

    An interrupted conversion resumes when it is called again with the same configuration.

    Args:
        config: what to convert and how.
        watch: receives progress reports, from worker threads too.
        jobs: the result of `plan_conversion` with the same configuration, if already computed.

    Raises:
        DFlashError: the source is invalid, or the output folder cannot be written; partial
            output is removed.
        OutOfDisk: the disk is full; finished files are kept and the same call resumes.
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
