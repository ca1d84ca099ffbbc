"""The rotary embedding in a `config.json`, in the spellings of every transformers version.

Targets and drafts read it here. It must not know families or MLX. Source of the rules:
transformers 5.24, `modeling_rope_utils` (`standardize_rope_params`, `_compute_yarn_parameters`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.system.foreign import quoted

ALL_LAYERS = ""
"""Key of the rotary embedding of a model whose layers share one."""
FULL, SLIDING = "full_attention", "sliding_attention"

_ALIASES = {"deepseek_yarn": "yarn", "telechat3-yarn": "yarn", "mrope": "default"}
"""`mrope` gives text tokens three equal positions, so text is rotated as by `default`."""
_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "proportional")
_WITHOUT_EFFECT = frozenset({"mrope_section", "mrope_interleaved", "finetuned"})
_NUMBERS = frozenset(
    {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "high_freq_factor",
        "low_freq_factor",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
    }
)
_MAX_NUMBER = 1e12

_REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


@dataclass(frozen=True)
class RopeConfig:
    """One rotary embedding.

    Args:
        kind: the `rope_type`.
        theta: the base of the frequencies, None where the file does not give it.
        partial_rotary_factor: rotated part of each head, None where the file does not give it.
        scaling: the other parameters of the kind, complete and without None.
    """

    kind: str = "default"
    theta: float | None = None
    partial_rotary_factor: float | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """Return kind and scaling as a `rope_scaling` table."""
        return {"rope_type": self.kind, **self.scaling}

    def context_length(self, max_position_embeddings: int) -> int:
        """Return the context length that the scaling extends `max_position_embeddings` to.

        `dynamic` extends nothing: its frequencies change with the length beyond that.
        """
        factor = self.scaling.get("factor", 1.0)
        original = self.scaling.get("original_max_position_embeddings", max_position_embeddings)
        if self.kind == "llama3" and max_position_embeddings > original:
            return max_position_embeddings  # Llama 3.1 to 3.3 give the extended length
        if self.kind in ("linear", "llama3", "yarn"):
            return max(max_position_embeddings, int(original * factor))
        return max_position_embeddings


def read_rope(config: Mapping[str, Any], source: str) -> dict[str, RopeConfig]:
    """Return the rotary embeddings that `config` describes, by layer type or `ALL_LAYERS`.

    Reads `rope_parameters`, `rope_scaling`, `rope_theta` and `partial_rotary_factor`; a value in
    two places has to be the same.

    Raises:
        BadCheckpoint: a value is missing, contradictory, or of the wrong type.
        UnsupportedModel: an unknown kind of scaling or an unknown parameter.
    """
    tables = {
        key: _table(config.get(key), key, source) for key in ("rope_scaling", "rope_parameters")
    }
    nested = {
        layer_type
        for table in tables.values()
        for layer_type, value in table.items()
        if isinstance(value, Mapping)
    }
    ropes = {}
    for layer_type in sorted(nested) or [ALL_LAYERS]:
        parts = [
            _table(table.get(layer_type), f"{key}.{layer_type}", source) if nested else table
            for key, table in tables.items()
        ]
        # a table beside the nested ones holds values for all layers
        shared = [{k: v for k, v in t.items() if k not in nested} for t in tables.values()]
        ropes[layer_type] = _rope(config, [*parts, *(shared if nested else [])], source)
    return ropes


def _table(value: Any, key: str, source: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadCheckpoint(f"{source}: {key} is {quoted(value)}; it needs a table of parameters")
    return value


def _rope(config: Mapping[str, Any], tables: list[Mapping[str, Any]], source: str) -> RopeConfig:
    """Return one rotary embedding from its tables and the keys at the top of `config`."""
    kinds = [kind for table in tables if table and (kind := _kind(table, source))]
    scaled = [kind for kind in kinds if kind != "default"]
    if len(set(scaled)) > 1:
        raise BadCheckpoint(
            f"{source}: rope_parameters and rope_scaling have the rope_types "
            f"{' and '.join(sorted(set(scaled)))}; they need to be the same"
        )
    kind = scaled[0] if scaled else "default"
    top = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    values: dict[str, Any] = {}
    for table in [*tables, top]:
        for key, value in table.items():
            if key in ("type", "rope_type") or value is None or key in _WITHOUT_EFFECT:
                continue
            if key not in _NUMBERS | top.keys() | {"truncate"}:
                raise UnsupportedModel(
                    f"{source}: the rotary embedding has the unknown parameter {quoted(key)}; "
                    "remove it if it changes nothing, or use another model"
                )
            if values.setdefault(key, value) != value:
                raise BadCheckpoint(
                    f"{source}: {key} is {quoted(values[key])} in one place and {quoted(value)} in "
                    "another; the two need to be the same"
                )
    for key, value in values.items():
        if key != "truncate":
            _check_number(key, value, source)
    theta, partial = values.pop("rope_theta", None), values.pop("partial_rotary_factor", None)
    return RopeConfig(
        kind,
        None if theta is None else float(theta),
        None if partial is None else float(partial),
        _scaling(kind, values, config, source),
    )


def _kind(table: Mapping[str, Any], source: str) -> str | None:
    """Return the kind of a table, None where it has none."""
    kind = table.get("rope_type", table.get("type"))
    if kind is None:
        return None
    kind = _ALIASES.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{source}: rope_type is {quoted(kind)}; supported are {', '.join(_KINDS)}. Use "
            "another model"
        )
    return str(kind)


def _check_number(key: str, value: Any, source: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # published bases reach 1e10; comparing first keeps huge integers out of float arithmetic
    if not number or not 0 <= value <= _MAX_NUMBER or (value == 0 and "mscale" not in key):
        raise BadCheckpoint(
            f"{source}: {key} is {quoted(value)}; it needs a number > 0 and <= {_MAX_NUMBER:g}"
        )
    if key == "partial_rotary_factor" and value > 1:
        raise BadCheckpoint(f"{source}: {key} is {quoted(value)}; it needs a number of at most 1")


def _scaling(
    kind: str, values: Mapping[str, Any], config: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the parameters that a kind reads, with transformers' defaults filled in."""
    longest = config.get("max_position_embeddings")
    for key in _REQUIRED.get(kind, ()):
        if key not in values:
            raise BadCheckpoint(f"{source}: rope_type {kind} lacks {key}; it needs a number > 0")
    if kind in ("linear", "dynamic"):
        kept = ("factor", "original_max_position_embeddings")
        return {key: values[key] for key in kept if key in values}
    if kind == "proportional":
        return {key: values[key] for key in ("factor",) if key in values}
    if kind not in ("llama3", "yarn"):
        return {}
    original = values.get(
        "original_max_position_embeddings",
        config.get("original_max_position_embeddings", longest),
    )
    _check_number("original_max_position_embeddings", original, source)
    scaling: dict[str, Any] = {"original_max_position_embeddings": original}
    if kind == "llama3":
        return scaling | {key: values[key] for key in _REQUIRED["llama3"]}
    factor = values.get("factor")
    if factor is None:
        _check_number("max_position_embeddings", longest, source)
        factor = longest / original
    scaling |= {"factor": factor}
    scaling |= {key: values[key] for key in ("beta_fast", "beta_slow") if key in values}
    if "attention_factor" in values:
        scaling["attention_factor"] = values["attention_factor"]
    if values.get("truncate") is False:
        scaling["truncate"] = False
    # transformers uses mscale only together with mscale_all_dim
    if values.get("mscale_all_dim"):
        scaling["mscale_all_dim"] = values["mscale_all_dim"]
        if values.get("mscale"):
            scaling["mscale"] = values["mscale"]
    return scaling


def yarn_attention_factor(scaling: Mapping[str, Any]) -> float:
    """Return the factor that YaRN multiplies queries and keys by."""
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    factor = float(scaling["factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    mscale, of_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and of_all:
        return scale(mscale) / scale(of_all)
    return scale(1)
