"""What a training run may be asked for, checked before anything is loaded."""

import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.paths import from_root, is_there, typed_path
from dflash_mlx.train.recipe import Weighting
from dflash_mlx.train.shape import Wishes

SELF = "self"
_SOURCES = ("target", "init", "data")
"""Options that may be paths."""

_KNOWN = "auto"
"""The draft to go on from that is known to belong to the target."""

MINUTES = 60.0
"""Minutes of a run that names neither minutes nor steps."""


@dataclass(frozen=True)
class TrainConfig:
    """One run. None leaves a choice to the plan.

    `data` is a file, a data set on the hub, or "self". `minutes` bound everything together,
    writing and measuring included; `steps` bound the training alone. `max_rows` cuts samples,
    `temperature` is that of the target's answers, `weighting` that of a block's rows in the loss,
    `cache_gb` bounds the features on disk.
    """

    target: str
    out: Path
    init: str | None = None
    data: str = SELF
    samples: int | None = None
    minutes: float | None = None
    steps: int | None = None
    wishes: Wishes = field(default_factory=Wishes)
    thinking: bool | None = None
    temperature: float = 0.0
    max_rows: int = 1024
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
            raise BadRequest("--samples is 1; it needs 2 or more, one of them to measure with")
        if self.max_rows < 16:
            raise BadRequest(f"--max-seq-length is {self.max_rows}; it needs 16 or more")
        if self.weighting not in get_args(Weighting):
            raise BadRequest(
                f"--weighting is {self.weighting!r}; it needs {' or '.join(get_args(Weighting))}"
            )
        if not 0 <= self.seed < 2**32:
            raise BadRequest(f"--seed is {self.seed}; it needs 0 to 4294967295")
        if self.cache_gb is not None and self.cache_gb < 0:
            raise BadRequest(f"--cache is {self.cache_gb}; it needs gigabytes, 0 for none")
        if self.init and replace(self.wishes, vocabulary=None) != Wishes():
            raise BadRequest(
                "--init gives the draft its shape; leave out --layers, --block-size and --dflash2, "
                "or --init"
            )
        self.answers  # noqa: B018  checks the temperature

    @property
    def answers(self) -> SamplingConfig:
        """How the target's answers are chosen."""
        return SamplingConfig(temperature=self.temperature)

    @property
    def out_folder(self) -> Path:
        """Where the result goes, from the root."""
        return typed_path(self.out).absolute()

    @property
    def run_folder(self) -> Path:
        """Where the run keeps what it needs to go on: beside the result."""
        return self.out_folder.with_name(f"{self.out_folder.name}.run")

    def as_values(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, that hold wherever the run is gone on with."""
        values = {**asdict(self), "out": str(self.out)}
        for name in _SOURCES:
            if values[name] not in (None, SELF, _KNOWN):
                values[name] = from_root(values[name])
        return values

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "TrainConfig":
        """Return the configuration that `as_values` described."""
        return cls(**{**values, "out": Path(values["out"]), "wishes": Wishes(**values["wishes"])})


def resumed(asked: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the configuration to go on with: the stored one, which `asked` may repeat.

    Where the result goes is `asked`'s to say, as it is where a file lies that moved with it.

    Raises:
        BadRequest: something else is asked for now.
    """
    plain = TrainConfig(target=asked.target, out=asked.out)
    from_here = TrainConfig.from_values(asked.as_values())
    found: dict[str, Any] = {"out": asked.out}
    for item in fields(TrainConfig):
        name = item.name
        now, then, usual = (getattr(each, name) for each in (from_here, stored, plain))
        if name == "out" or then in (now, getattr(asked, name)):
            continue
        if now == usual and name != "target":
            continue
        if name in _SOURCES and os.path.isabs(then or "") and not is_there(Path(then)):
            found[name] = now
            continue
        raise BadRequest(
            f"{asked.run_folder} was begun with {name} {then} and not {now}; go on with --resume "
            "alone, or begin anew with another -o"
        )
    return replace(stored, **found)
