"""The options of a training run, validated before anything is loaded.

Must not know models or samples.
"""

import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.paths import from_root, is_there, typed_path
from dflash_mlx.train.loop.recipe import Weighting
from dflash_mlx.train.model.shape import DraftOverrides

SELF = "self"
_PATH_OPTIONS = ("target", "init", "data")
"""Options that may be paths."""

_AUTO = "auto"
"""`--init auto`: the draft that is registered for the target."""

DEFAULT_MINUTES = 60.0
"""Minutes of a run that names neither minutes nor steps."""

_MIN_SEQ_LENGTH = 16
"""Room for a prompt in a chat template and one block."""


@dataclass(frozen=True)
class TrainConfig:
    """The options of one run. None lets the plan choose.

    Args:
        target: nickname, folder, .gguf file or hub id.
        out: folder of the result.
        init: draft to initialise from, or "auto".
        data: a file, a data set on the hub, or "self".
        samples: number of samples.
        minutes: bound of the whole run, generation and evaluation included.
        steps: number of optimiser steps; excludes `minutes`.
        overrides: the draft's shape.
        thinking: thinking mode of all answers.
        temperature: of the target's answers; 0 is greedy.
        max_seq_length: longest sample in tokens; longer answers are cut.
        learning_rate: peak.
        weighting: per-position loss weighting, "fixed" or "d-pace".
        cache_gb: disk space for the target's features.
        seed: of generation, initial weights, sample order and anchors.
    """

    target: str
    out: Path
    init: str | None = None
    data: str = SELF
    samples: int | None = None
    minutes: float | None = None
    steps: int | None = None
    overrides: DraftOverrides = field(default_factory=DraftOverrides)
    thinking: bool | None = None
    temperature: float = 0.0
    max_seq_length: int = 1024
    learning_rate: float | None = None
    weighting: str = "fixed"
    cache_gb: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "minutes", "steps", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadRequest(f"--{name.replace('_', '-')} is {value}; it needs more than 0")
        if self.minutes is not None and self.steps is not None:
            raise BadRequest("--minutes and --steps both bound the run; give one of them")
        if self.samples == 1:
            raise BadRequest("--samples is 1; it needs 2 or more, one of them for evaluation")
        if self.max_seq_length < _MIN_SEQ_LENGTH:
            raise BadRequest(
                f"--max-seq-length is {self.max_seq_length}; it needs {_MIN_SEQ_LENGTH} or more"
            )
        if self.weighting not in get_args(Weighting):
            raise BadRequest(
                f"--weighting is {self.weighting!r}; it needs {' or '.join(get_args(Weighting))}"
            )
        if not 0 <= self.seed < 2**32:
            raise BadRequest(f"--seed is {self.seed}; it needs 0 to 4294967295")
        if self.cache_gb is not None and self.cache_gb < 0:
            raise BadRequest(f"--cache is {self.cache_gb}; it needs gigabytes, 0 for none")
        if self.init and replace(self.overrides, vocabulary=None) != DraftOverrides():
            raise BadRequest(
                "--init determines the draft's shape; leave out --layers, --block-size and "
                "--dflash2, or --init"
            )
        self.answer_sampling  # noqa: B018  validates the temperature

    @property
    def answer_sampling(self) -> SamplingConfig:
        """Sampling of the target's answers."""
        return SamplingConfig(temperature=self.temperature)

    @property
    def out_folder(self) -> Path:
        """Absolute path of the result's folder."""
        return typed_path(self.out).absolute()

    @property
    def run_folder(self) -> Path:
        """Absolute path of the run's own folder, next to the result: OUT.run."""
        return self.out_folder.with_name(f"{self.out_folder.name}.run")

    def as_values(self) -> dict[str, Any]:
        """Return plain values for JSON; paths are absolute, so they hold in any working folder."""
        values = {**asdict(self), "out": str(self.out)}
        for name in _PATH_OPTIONS:
            if values[name] not in (None, SELF, _AUTO):
                values[name] = from_root(values[name])
        return values

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "TrainConfig":
        """Return the configuration that `as_values` described."""
        overrides = DraftOverrides(**values["overrides"])
        return cls(**{**values, "out": Path(values["out"]), "overrides": overrides})


def resume_config(given: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the configuration to resume with: the stored one, whose options may be repeated.

    `out` comes from `given`, and so does a path whose stored file no longer exists.

    Raises:
        BadRequest: `given` contradicts an option that is stored.
    """
    defaults = TrainConfig(target=given.target, out=given.out)
    given_absolute = TrainConfig.from_values(given.as_values())
    changes: dict[str, Any] = {"out": given.out}
    for item in fields(TrainConfig):
        name = item.name
        now, then, default = (getattr(each, name) for each in (given_absolute, stored, defaults))
        if name == "out" or then in (now, getattr(given, name)):
            continue
        if now == default and name != "target":
            continue
        if name in _PATH_OPTIONS and os.path.isabs(then or "") and not is_there(Path(then)):
            changes[name] = now
            continue
        raise BadRequest(
            f"the run in {given.run_folder} has {name} {then} and the command has {now}; give "
            "--resume without that option, or start another run with another -o"
        )
    return replace(stored, **changes)
