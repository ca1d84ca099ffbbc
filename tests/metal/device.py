"""The executor as a device for the launches of `dflash_mlx.metal`."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from dflash_mlx.metal.build import Launch
from tests.metal.executor import Executor, Run


class WrongBehaviour(AssertionError):
    """A kernel did something that Metal does not allow; the message names the source line."""

    def __init__(self, kernel: str, run: Run) -> None:
        self.reports = tuple(run.reports)
        text = run.source.text.splitlines()
        lines = [f"{kernel}: {len(run.reports)} reports"]
        for report in run.reports:
            lines.append(str(report))
            if report.line:
                lines.append(f"    {text[report.line - 1].strip()}")
        super().__init__("\n".join(lines))


class ExecutorDevice:
    """Runs launches in an executor, records each run, and raises on any report."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.runs: list[Run] = []

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of `launch`; raises WrongBehaviour on a report."""
        run = self.executor.run(
            launch.kernel.compiled,
            launch.inputs,
            template=launch.template,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            output_shapes=launch.output_shapes,
            output_dtypes=launch.output_dtypes,
            init_value=launch.init_value,
        )
        self.runs.append(run)
        if run.reports:
            raise WrongBehaviour(launch.kernel.name, run)
        return run.outputs
