"""Turns the JSON of a run's own files into typed values, and refuses values of other types.

Must not know where the files are.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dflash_mlx.system.foreign import quoted
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.run.options import TrainConfig
from dflash_mlx.train.run.schedule import EvaluationPlan

STATE_FORMAT = 2
"""Version of `run.json`; a run of another version is refused."""


@dataclass(frozen=True)
class RunState:
    """The content of `run.json`; None stands for what is not decided yet.

    `plan` is the last plan as plain values, for the reader of the file. Sizes are in bytes.
    """

    format: int
    config: TrainConfig | None = None
    n_samples: int | None = None
    spent_s: float = 0.0
    recipe: Recipe | None = None
    evaluations: EvaluationPlan | None = None
    cache_bytes: int = 0
    plan: dict[str, Any] | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        if self.format != STATE_FORMAT:
            raise ValueError(f"it has format {self.format} and this version reads {STATE_FORMAT}")
        if self.n_samples is not None and self.n_samples < 1:
            raise ValueError(f"n_samples is {self.n_samples}; it needs 1 or more")
        if not self.spent_s >= 0 or self.cache_bytes < 0:
            raise ValueError("spent_s and cache_bytes need 0 or more")
        evaluations = self.evaluations
        if evaluations and (evaluations.times < 1 or evaluations.per_kind < 1):
            raise ValueError("evaluations need 1 or more times and prompts per kind")
        if self.recipe is not None and (self.n_samples is None or evaluations is None):
            raise ValueError("a recipe needs n_samples and evaluations")


def typed(kind: Any, value: Any, name: str = "the file") -> Any:
    """Return `value`, read from JSON, as an instance of the type `kind`.

    Dataclasses are built from objects with all their fields or fewer; integers are accepted for
    floats; floats have to be finite.

    Raises:
        ValueError: the value has another type, or an unknown field; `name` says where.
        BadRequest: a dataclass refuses a value.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _any_of(get_args(kind), value, name)
    if origin is Literal:
        if value in get_args(kind) and type(value) in {type(item) for item in get_args(kind)}:
            return value
    elif is_dataclass(kind):
        return _instance(kind, value, name)
    elif origin is dict or kind is dict:
        if isinstance(value, dict):
            return value
    elif kind is Path:
        if isinstance(value, str):
            return Path(value)
    elif kind is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value) if type(value) is float else value
    elif type(value) is kind:
        return value
    raise ValueError(f"{name} is {quoted(value)}")


def _any_of(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    (kind,) = (kind for kind in kinds if kind is not types.NoneType)
    return typed(kind, value, name)


def _instance(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {quoted(value)}")
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind) if field.init}
    if unknown := sorted(str(key) for key in value.keys() - known):
        raise ValueError(f"{name} has the unknown field {quoted(unknown[0])}")
    try:
        return kind(**{key: typed(hints[key], item, key) for key, item in value.items()})
    except TypeError as error:
        raise ValueError(f"{name} lacks a field ({error})") from error


def is_history_line(value: Any) -> bool:
    """Return whether `value` is a line that a run logs: a step or an evaluation."""
    if not isinstance(value, dict) or type(value.get("step")) is not int or value["step"] < 1:
        return False
    if type(value.get("tokens")) is not int:
        return False
    if "decoding" in value:
        return _is_evaluation(value)
    numbers = ("loss", "tokens_per_round", "learning_rate", "gradient_norm")
    return all(_is_number(value.get(key)) for key in numbers) and _are_numbers(
        value.get("accepted")
    )


def _is_evaluation(line: Mapping[str, Any]) -> bool:
    decoding, anchors = line["decoding"], line.get("anchors")
    if not isinstance(decoding, dict) or not isinstance(anchors, dict):
        return False
    by_kind, lengths = decoding.get("by_kind"), decoding.get("accepted_lengths")
    if not isinstance(by_kind, dict) or not isinstance(lengths, dict):
        return False
    counts = [decoding.get(key) for key in ("block_size", "tokens", "rounds")]
    numbers = [decoding.get("tokens_per_round"), *by_kind.values()]
    return (
        all(type(count) is int for count in [*counts, anchors.get("anchors"), *lengths.values()])
        and all(str(length).isdecimal() and len(str(length)) < 5 for length in lengths)
        and all(_is_number(number) for number in [*numbers, anchors.get("tokens_per_round")])
        and _are_numbers(decoding.get("accepted_by_position"))
        and _are_numbers(anchors.get("accepted_by_position"))
    )


def _is_number(value: Any) -> bool:
    """Return whether `value` fits a float; NaN does, because a step's loss can be NaN."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(_is_number(value) for value in values)
