"""What a model's `generation_config.json` sets: sampling defaults and end tokens."""

from collections.abc import Mapping
from typing import Any

from dflash_mlx.config import SamplingConfig
from dflash_mlx.errors import BadCheckpoint, BadRequest

_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingConfig:
    """Return the sampling that a `generation_config.json` asks for; greedy by default.

    Raises:
        BadCheckpoint: a value is out of range.
    """
    if not generation.get("do_sample", False):
        return SamplingConfig()
    stated = {key: generation[key] for key in _SAMPLING_KEYS if generation.get(key) is not None}
    try:
        return SamplingConfig(**{"temperature": 1.0, **stated})
    except BadRequest as error:
        raise BadCheckpoint(f"generation_config.json: {error}") from error


def eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the union of the end tokens that the configurations name, in order of id."""
    ids: set[int] = set()
    for config in configs:
        stated = config.get("eos_token_id")
        ids.update([stated] if isinstance(stated, int) else stated or [])
    return tuple(sorted(ids))
