"""Results of a plan and of a finished conversion, as tables for `--json` and the report."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dflash_mlx.convert.check.verification import VerificationReport
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.sources.side_files import REPORT
from dflash_mlx.convert.write.cards import unchanged_source, write_table
from dflash_mlx.convert.write.destination import output_folder
from dflash_mlx.hub.download import free_bytes

_VARIABLE = ("seconds", "peak_bytes", "worst")
"""Fields that differ from run to run, or follow from others; the report leaves them out."""


@dataclass(frozen=True)
class ConversionOutcome:
    """A finished conversion.

    Args:
        out: the output folder.
        jobs: what was converted.
        checks: one report per job; empty without verification.
        unchanged: whether every weight was copied bit for bit.
    """

    out: Path
    jobs: tuple[ConversionJob, ...]
    checks: tuple[VerificationReport, ...]
    unchanged: bool

    @classmethod
    def of(
        cls, jobs: Sequence[ConversionJob], out: Path, checks: Sequence[VerificationReport]
    ) -> Self:
        """Return the outcome of finished jobs."""
        unchanged = all(job.copies_source for job in jobs)
        return cls(out, tuple(jobs), tuple(checks), unchanged)

    def write(self, folder: Path) -> None:
        """Write the report into `folder`; equal conversions write equal bytes."""
        if source := unchanged_source(self.jobs):
            shutil.copyfile(source / REPORT, folder / REPORT)
            return
        models = {}
        for number, job in enumerate(self.jobs):
            models[job.folder or "."] = _facts(job)
            if self.checks:
                models[job.folder or "."]["check"] = _report(self.checks[number])
        write_table(folder / REPORT, {"format": 1, "models": models})

    def table(self) -> dict[str, Any]:
        """Return the outcome as one JSON object, with timings."""
        models = [_facts(job) for job in self.jobs]
        for model, check in zip(models, self.checks, strict=False):
            found = asdict(check)
            del found["errors"]
            model["check"] = found
        return {"out": str(self.out), "unchanged": self.unchanged, "models": models}


def plan_table(config: ConvertConfig, jobs: Sequence[ConversionJob]) -> dict[str, Any]:
    """Return a planned conversion as one JSON object; sizes are in bytes.

    `disk_bytes` is the size of the result, `peak_bytes` the memory without verification.
    `download_bytes` is the size of sources that are downloaded by shards, of which at most
    `shard_bytes` are on the disk at a time; both are 0 for other sources.
    """
    out = output_folder(config, jobs)
    remote = [job.source.shards for job in jobs if job.source.shards]
    return {
        "out": str(out),
        "models": [_facts(job) | {"described": job.source.described()} for job in jobs],
        "disk_bytes": sum(job.plan.n_bytes for job in jobs),
        "free_bytes": free_bytes(out),
        "peak_bytes": max(job.peak_bytes for job in jobs),
        "download_bytes": sum(shards.n_bytes for shards in remote),
        "shard_bytes": max((shards.largest_download() for shards in remote), default=0),
    }


def _facts(job: ConversionJob) -> dict[str, Any]:
    """Return what a job reads and writes."""
    return {
        "kind": job.source.kind,
        "form": job.source.form,
        "source": job.source.name,
        "revision": job.source.location.revision,
        "recipe": job.recipe.name if job.recipe else None,
        "quantization": job.plan.quantization,
        "left_plain": list(job.plan.left_plain),
        "bits_per_weight": round(job.plan.bits_per_weight, 4),
        "bits_by_role": job.plan.bits_by_role(),
        "n_tensors": len(job.plan.outputs),
        "source_bytes": job.n_source_bytes,
        "output_bytes": job.plan.n_bytes,
        "shards": [shard.name for shard in job.plan.shards],
    }


def _report(check: VerificationReport) -> dict[str, Any]:
    found = {name: value for name, value in asdict(check).items() if name not in _VARIABLE}
    found["errors"] = {
        error.name: {"relative": error.relative, "largest": error.largest}
        for error in check.errors
        if error.relative
    }
    return found
