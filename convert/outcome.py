"""What a conversion gave: where it lies, its size, and what the check found."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dflash_mlx.convert.check.verification import VerificationReport
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.sources.side_files import REPORT, write_json
from dflash_mlx.convert.write.cards import unchanged_from
from dflash_mlx.convert.write.destination import output_folder
from dflash_mlx.hub.download import free_bytes

_OF_THIS_RUN = ("seconds", "peak_bytes", "worst")


@dataclass(frozen=True)
class ConversionOutcome:
    """A finished conversion. `checks` has one entry per job, or none without verification.

    `unchanged` says that every weight was copied bit for bit.
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
        unchanged = all(job.plan.unchanged() for job in jobs)
        return cls(out, tuple(jobs), tuple(checks), unchanged)

    def write(self, folder: Path) -> None:
        """Write the report into `folder`; the same conversion always writes the same bytes."""
        if kept := unchanged_from(self.jobs):
            shutil.copyfile(kept / REPORT, folder / REPORT)
            return
        models = {}
        for place, job in enumerate(self.jobs):
            models[job.folder or "."] = described(job)
            if self.checks:
                models[job.folder or "."]["check"] = _stored(self.checks[place])
        write_json(folder / REPORT, {"format": 1, "models": models})

    def table(self) -> dict[str, Any]:
        """The outcome as one JSON object, timings included."""
        models = [described(job) for job in self.jobs]
        for model, check in zip(models, self.checks, strict=False):
            found = asdict(check)
            del found["errors"]
            model["check"] = found
        return {"out": str(self.out), "unchanged": self.unchanged, "models": models}


def plan_table(config: ConvertConfig, jobs: Sequence[ConversionJob]) -> dict[str, Any]:
    """Return what a conversion would do as one JSON object; sizes are in bytes.

    `disk_bytes` are needed beside the source, `peak_bytes` of memory without verification.
    """
    out = output_folder(config, jobs)
    return {
        "out": str(out),
        "models": [described(job) | {"described": job.source.described()} for job in jobs],
        "disk_bytes": sum(job.plan.n_bytes for job in jobs),
        "free_bytes": free_bytes(out),
        "peak_bytes": max(job.peak_bytes for job in jobs),
    }


def described(job: ConversionJob) -> dict[str, Any]:
    """Return the facts of one job: what it reads, what it writes, what that takes."""
    return {
        "kind": job.source.kind,
        "form": job.source.form,
        "source": job.source.name,
        "revision": job.source.located.revision,
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


def _stored(check: VerificationReport) -> dict[str, Any]:
    found = {name: value for name, value in asdict(check).items() if name not in _OF_THIS_RUN}
    found["errors"] = {
        error.name: {"relative": error.relative, "largest": error.largest}
        for error in check.errors
        if error.relative
    }
    return found
