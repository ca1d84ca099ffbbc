"""Plans and runs a whole conversion: open the sources, plan, write, check, publish.

It must not know how any of these steps works.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dflash_mlx.convert.check.tensor_errors import TensorError, combined_errors, piece_meter
from dflash_mlx.convert.check.verification import verify_model
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.outcome import ConversionOutcome
from dflash_mlx.convert.plan.files import PlannedTensor
from dflash_mlx.convert.plan.job import ConversionJob, fingerprint, plan_job
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback, ignore_progress
from dflash_mlx.convert.sources.pairing import open_sources
from dflash_mlx.convert.write.cards import is_conversion_of, write_cards
from dflash_mlx.convert.write.destination import disk_reserved, output_folder
from dflash_mlx.convert.write.shards import write_weights
from dflash_mlx.convert.write.streaming import StreamedConversion
from dflash_mlx.convert.write.work_folder import WorkFolder, check_replaceable
from dflash_mlx.errors import BadRequest
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
    wait: bool = False,
) -> ConversionOutcome:
    """Run a conversion and return its output folder and the results of the check.

    An interrupted conversion resumes when it is called again with the same configuration.

    Args:
        config: what to convert and how.
        watch: receives progress reports, from worker threads too.
        jobs: the result of `plan_conversion` with the same configuration, if already computed.
        wait: wait for another conversion into the same folder, which is refused otherwise.

    Raises:
        DFlashError: the source is invalid, or the output folder cannot be written; partial
            output is removed.
        OutOfDisk: the disk is full; finished files are kept and the same call resumes.
    """
    jobs = list(jobs or plan_conversion(config, watch))
    out = output_folder(config, jobs)
    work_folder = WorkFolder(
        out, fingerprint(jobs, config), config.force, _streamed_files(jobs), wait
    )
    with disk_reserved(out, jobs), work_folder as work:
        streamed: dict[str, list[TensorError]] = {}
        for job in jobs:
            if job.source.shards:
                streamed[job.folder] = _stream(job, config, work, watch)
            else:
                write_weights(job, work, watch)
        watch(ConversionProgress("files", 0, 1))
        write_cards(jobs, config, work.path, work.finished)
        checks = (
            [verify_model(job, jobs, work.path, watch, streamed.get(job.folder)) for job in jobs]
            if config.verify
            else []
        )
        outcome = ConversionOutcome.of(jobs, out, checks)
        outcome.write(work.path)
        watch(ConversionProgress("publish", 0, 1))
        work.publish()
    watch(ConversionProgress("publish", 1, 1))
    return outcome


def ensure_converted(config: ConvertConfig, watch: ProgressCallback = ignore_progress) -> Path:
    """Return the output folder of a hub source's conversion; convert only if it does not exist.

    Processes may call it at the same time: one converts, and the others wait for its result.

    Args:
        config: what to convert; `out` is required and `force` is not used.
        watch: receives progress reports, from worker threads too.

    Raises:
        BadRequest: `out` is missing, or holds something else than this conversion.
        DFlashError: as for `convert`.
    """
    if config.out is None:
        raise BadRequest("out is missing; ensure_converted needs the folder of the result")
    out = typed_path(config.out).absolute()
    config = replace(config, force=False)
    if is_conversion_of(out, config):
        return out
    try:
        return convert(config, watch, wait=True).out
    except BadRequest:
        if is_conversion_of(out, config):  # another process finished it while this one waited
            return out
        raise


def _streamed_files(jobs: Sequence[ConversionJob]) -> list[str]:
    """Return the output files that are written piece by piece while shards are downloaded."""
    return [
        f"{job.folder}/{shard.name}" if job.folder else shard.name
        for job in jobs
        if job.source.shards
        for shard in job.plan.shards
    ]


def _stream(
    job: ConversionJob, config: ConvertConfig, work: WorkFolder, watch: ProgressCallback
) -> list[TensorError]:
    """Download and convert a job shard by shard; return the errors, measured at the same time."""

    def unmeasured(output: PlannedTensor, start: int, stop: int) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    measure = piece_meter(job, work.path / job.folder) if config.verify else unmeasured
    return combined_errors(StreamedConversion(job, work, watch, measure).run())
