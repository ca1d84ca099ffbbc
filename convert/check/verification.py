"""The whole check of one finished model: complete, and this far from its source."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.convert.check.acceptance import DraftComparison, compare_drafts
from dflash_mlx.convert.check.divergence import TargetComparison, compare_targets
from dflash_mlx.convert.check.tensor_errors import TensorError, check_names, measure
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback

WORST = 10


@dataclass(frozen=True)
class VerificationReport:
    """What verification found. Where a comparison was not made, its `_skipped` says why.

    `seconds` and `peak_bytes` (resident memory of the process so far) are what it took.
    """

    n_tensors: int
    n_exact: int
    worst: tuple[TensorError, ...]
    divergence: TargetComparison | None = None
    divergence_skipped: str | None = None
    acceptance: DraftComparison | None = None
    acceptance_skipped: str | None = None
    seconds: float = 0.0
    peak_bytes: int = 0
    errors: tuple[TensorError, ...] = field(default=(), repr=False)


def verify_model(
    job: ConversionJob, jobs: Sequence[ConversionJob], folder: Path, watch: ProgressCallback
) -> VerificationReport:
    """Return the check of `job`, whose pair is `jobs` and lies in `folder`.

    Raises:
        BadCheckpoint: a tensor is missing, misshapen or reads back differently.
    """
    begun = time.perf_counter()
    written = check_names(job, folder / job.folder)
    done = 0

    def advance(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        watch(ConversionProgress("check", done, job.n_source_bytes, job.source.name))

    errors = measure(job, written, advance)
    facts: dict[str, Any] = {}
    if job.draft is None:
        facts["divergence"], facts["divergence_skipped"] = compare_targets(
            job, written, folder / job.folder, watch
        )
    else:
        facts["acceptance"], facts["acceptance_skipped"] = compare_drafts(job, jobs, folder, watch)
    return VerificationReport(
        n_tensors=len(errors),
        n_exact=sum(error.relative == 0 for error in errors),
        worst=tuple(sorted(errors, key=lambda error: (-error.relative, error.name))[:WORST]),
        errors=tuple(errors),
        seconds=time.perf_counter() - begun,
        peak_bytes=peak_bytes(),
        **facts,
    )


def peak_bytes() -> int:
    """Return the largest resident memory that this process had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
