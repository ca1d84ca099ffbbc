"""Verifies one finished model: all tensors are present, and how far they are from the source."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_mlx.convert.check.acceptance import DraftComparison, compare_drafts
from dflash_mlx.convert.check.divergence import TargetComparison, compare_targets
from dflash_mlx.convert.check.tensor_errors import TensorError, check_names, measure_errors
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback

N_WORST = 10
"""Rows of the table of tensors with the largest errors."""


_ORIGINAL_DELETED = (
    "the original weights were deleted shard by shard; add --keep-original to keep them"
)


@dataclass(frozen=True)
class VerificationReport:
    """The result of verifying one model.

    Args:
        n_tensors: tensors of the plan.
        n_exact: tensors without any error.
        worst: the tensors with the largest relative errors.
        divergence: next-token distributions of source and result; None if not measured.
        divergence_skipped: the reason, if not measured.
        acceptance: acceptance of source and result on the pair; None if not measured.
        acceptance_skipped: the reason, if not measured.
        seconds: time that verification took.
        peak_bytes: largest resident memory of the process so far.
        errors: the error of every tensor.
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
    job: ConversionJob,
    jobs: Sequence[ConversionJob],
    folder: Path,
    watch: ProgressCallback,
    streamed: Sequence[TensorError] | None = None,
) -> VerificationReport:
    """Return the report for `job`, one of `jobs`, whose output is in `folder`.

    `streamed` holds the errors that were measured while the source was on the disk.

    Raises:
        BadCheckpoint: a tensor is missing, misshapen or reads back differently.
    """
    started = time.perf_counter()
    written = check_names(job, folder / job.folder)
    done = 0

    def advance(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        watch(ConversionProgress("check", done, job.n_source_bytes, job.source.name))

    errors = measure_errors(job, written, advance) if streamed is None else list(streamed)
    facts: dict[str, Any] = {}
    if streamed is not None:
        comparison = "divergence" if job.draft is None else "acceptance"
        facts[f"{comparison}_skipped"] = _ORIGINAL_DELETED
    elif job.draft is None:
        facts["divergence"], facts["divergence_skipped"] = compare_targets(
            job, written, folder / job.folder, watch
        )
    else:
        facts["acceptance"], facts["acceptance_skipped"] = compare_drafts(job, jobs, folder, watch)
    return VerificationReport(
        n_tensors=len(errors),
        n_exact=sum(error.relative == 0 for error in errors),
        worst=tuple(sorted(errors, key=lambda error: (-error.relative, error.name))[:N_WORST]),
        errors=tuple(errors),
        seconds=time.perf_counter() - started,
        peak_bytes=peak_bytes(),
        **facts,
    )


def peak_bytes() -> int:
    """Return the largest resident memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
