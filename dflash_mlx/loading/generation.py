"""A model's `generation_config.json`: sampling defaults and end tokens.

It must not stop a model from loading: a value that cannot be used is left out with a notice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.system.foreign import quoted
from dflash_mlx.system.json_file import read_json

FILE = "generation_config.json"
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_COLDEST = 1e-3
"""`SamplingConfig`'s lowest temperature above 0; colder sampling is greedy in practice."""


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults, end tokens in order of id, and a line for each value left out."""

    sampling: SamplingConfig
    eos_token_ids: tuple[int, ...]
    notices: tuple[str, ...]


def generation_defaults(folder: Path, *configs: Mapping[str, Any]) -> GenerationDefaults:
    """Return the defaults of a model's folder; `configs` may name further end tokens."""
    notices: list[str] = []
    generation: dict[str, Any] = {}
    if (folder / FILE).exists():
        try:
            generation = read_json(folder / FILE)
        except BadCheckpoint as error:
            notices.append(f"{error}; its sampling defaults and end tokens are not used")
    sampling = _sampling(generation, notices)
    ids: set[int] = set()
    for config in (*configs, generation):
        ids |= _token_ids(config.get("eos_token_id"), notices)
    return GenerationDefaults(sampling, tuple(sorted(ids)), tuple(dict.fromkeys(notices)))


def _sampling(generation: Mapping[str, Any], notices: list[str]) -> SamplingConfig:
    """Return the sampling that a model asks for; greedy where it asks for none."""
    if generation.get("do_sample") is not True:
        return SamplingConfig()
    usable: dict[str, Any] = {"temperature": 1.0}
    for key in _SAMPLING_KEYS:
        if (value := generation.get(key)) is None:
            continue
        if key == "top_k" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if key == "temperature" and type(value) in (int, float) and 0 < value < _COLDEST:
            notices.append(f"{FILE}: temperature is {value}, which is greedy decoding")
            return SamplingConfig()
        if key == "top_k" and value == -1:
            continue  # a common spelling of off
        try:
            SamplingConfig(**{**usable, key: value})
        except Exception:  # noqa: BLE001  any value of JSON may stand here
            notices.append(
                f"{FILE}: {key} is {quoted(value)}, which is out of range; using "
                f"{_OFF.get(key, usable.get(key))}"
            )
            continue
        usable[key] = value
    return SamplingConfig(**usable)


def _token_ids(stated: Any, notices: list[str]) -> set[int]:
    values = stated if isinstance(stated, list) else [] if stated is None else [stated]
    ids = {value for value in values if type(value) is int and value >= 0}
    if len(ids) < len(values) and not all(type(value) is int for value in values):
        notices.append(f"eos_token_id is {quoted(stated)}; only whole numbers are used")
    return ids
