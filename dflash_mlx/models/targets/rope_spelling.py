"""Rotary embeddings in the keys that each mlx-lm module reads; what it lacks is refused.

It must not read weights or import MLX.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.rope_config import (
    ALL_LAYERS,
    FULL,
    SLIDING,
    RopeConfig,
    yarn_attention_factor,
)
from dflash_mlx.system.foreign import quoted

ROPE_KEYS = frozenset(
    {
        "partial_rotary_factor",
        "rope_local_base_freq",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rotary_dim",
    }
)
_SCALED = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RopeStyle:
    """How an mlx-lm module reads its rotary embedding.

    Args:
        spelling: `flat`: rope_theta and rope_scaling; `theta`: rope_theta only, without scaling;
            `table`: rope_parameters; `layers`: rope_parameters by layer type; `gemma3`: flat, and
            rope_local_base_freq for windowed layers.
        theta: transformers' default of rope_theta, None where the file has to give it.
        partial: transformers' default of partial_rotary_factor, None where heads rotate whole.
    """

    spelling: Literal["flat", "theta", "table", "layers", "gemma3"]
    theta: float | None = None
    partial: float | None = None


ROPE_STYLES: Mapping[str, RopeStyle] = {
    "deepseek_v3": RopeStyle("flat", theta=10000.0),
    "gemma3": RopeStyle("gemma3", theta=1_000_000.0),
    "gemma3_text": RopeStyle("gemma3", theta=1_000_000.0),
    "gemma4": RopeStyle("layers", partial=1.0),
    "gemma4_text": RopeStyle("layers", partial=1.0),
    "glm4_moe": RopeStyle("theta", partial=0.5),
    "glm_moe_dsa": RopeStyle("table"),
    "gpt_oss": RopeStyle("flat", theta=150000.0),
    "kimi_k25": RopeStyle("flat", theta=10000.0),
    "laguna": RopeStyle("layers", partial=1.0),
    "lfm2": RopeStyle("theta", theta=1_000_000.0),
    "llama": RopeStyle("flat", theta=10000.0),
    "longcat_flash": RopeStyle("flat"),
    "minimax": RopeStyle("theta", partial=1.0),
    "muse_glimmer": RopeStyle("theta"),
    "qwen2": RopeStyle("flat"),
    "qwen3": RopeStyle("flat"),
    "qwen3_5": RopeStyle("table", partial=0.25),
    "qwen3_5_moe": RopeStyle("table", partial=0.25),
    "qwen3_moe": RopeStyle("theta"),
    "qwen3_next": RopeStyle("flat", partial=0.25),
}
"""By mlx-lm module. qwen3_moe and glm4_moe accept rope_scaling and do not apply it."""

_LOCAL_THETA = 10000.0
"""Base of Gemma's windowed layers, in transformers and mlx-lm."""


def main_rope(ropes: Mapping[str, RopeConfig]) -> RopeConfig | None:
    """Return the rotary embedding of all layers, or of the full ones."""
    return ropes.get(ALL_LAYERS, ropes.get(FULL))


def spell_rope(
    module: str, ropes: Mapping[str, RopeConfig], text: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the rope keys of an mlx-lm module for the rotary embeddings of a text model.

    Raises:
        UnsupportedModel: the module does not apply this scaling, partial rotation, or rotary
            embeddings by layer type.
        BadCheckpoint: a value is missing.
    """
    style = ROPE_STYLES[module]
    for rope in ropes.values():
        _check_supported(module, style, rope, source)
    if style.spelling == "layers":
        return _by_layer(module, ropes, source)
    if style.spelling == "gemma3":
        return _gemma3(ropes, text, source)
    if len(set(map(repr, ropes.values()))) != 1:
        raise UnsupportedModel(
            f"{source}: rope_parameters differ by layer type, which {module} models do not "
            "support; use another model"
        )
    rope = next(iter(ropes.values()))
    theta = _theta(rope, style.theta, source)
    partial = rope.partial_rotary_factor or style.partial
    if style.spelling == "table":
        given = {} if partial is None else {"partial_rotary_factor": partial}
        return {"rope_parameters": {**_table(rope), "rope_theta": theta, **given}}
    keys: dict[str, Any] = {"rope_theta": theta}
    if style.spelling == "flat" or module == "glm4_moe":
        keys["rope_scaling"] = None if rope.kind == "default" else _table(rope)
    if module == "minimax":
        keys["rotary_dim"] = _rotary_dim(rope, text, source)
    elif partial is not None:
        keys["partial_rotary_factor"] = partial
    return keys


def _check_supported(module: str, style: RopeStyle, rope: RopeConfig, source: str) -> None:
    kinds: tuple[str, ...] = ("default",) if style.spelling == "theta" else _SCALED
    if module.startswith("gemma4"):
        kinds = ("default", "proportional")
    if rope.kind not in kinds:
        raise UnsupportedModel(
            f"{source}: rope_type is {rope.kind}; {module} models support {', '.join(kinds)}. "
            "Remove the scaling, or use another model"
        )
    if style.partial is None and rope.partial_rotary_factor not in (None, 1.0):
        raise UnsupportedModel(
            f"{source}: partial_rotary_factor is {rope.partial_rotary_factor}; {module} models "
            "need 1.0. Use another model"
        )
    if rope.kind != "yarn":
        return
    scaling = dict(rope.scaling)
    # gpt-oss is published with truncate false; mlx-lm rounds the range of blended frequencies
    if scaling.get("truncate") is False and module != "gpt_oss":
        raise UnsupportedModel(
            f"{source}: truncate is false in the YaRN scaling, which mlx-lm does not support; "
            "remove it, or use another model"
        )
    if scaling["factor"] <= 1 and yarn_attention_factor(scaling) != 1:
        raise UnsupportedModel(
            f"{source}: attention_factor is {yarn_attention_factor(scaling):g} with a YaRN factor "
            f"of {scaling['factor']:g}; mlx-lm supports 1 there. Use another model"
        )


def _table(rope: RopeConfig) -> dict[str, Any]:
    """Return the `rope_scaling` table of mlx-lm, which has the attention factor as mscale.

    mlx-lm multiplies queries and keys by (0.1 mscale ln(factor) + 1) / (0.1 all ln(factor) + 1)
    with `all` = mscale_all_dim, 0 by default, and does not read attention_factor.
    """
    table = rope.table()
    if rope.kind != "yarn" or table["factor"] <= 1:
        return table
    attention_factor = yarn_attention_factor(table)
    table.pop("attention_factor", None)
    if math.isclose(attention_factor, yarn_attention_factor({**table, "mscale": None})) and (
        "mscale_all_dim" not in table
    ):
        return table  # mlx-lm's default
    if "mscale" in table and math.isclose(attention_factor, yarn_attention_factor(table)):
        return table
    slope = 0.1 * math.log(table["factor"])
    of_all = slope * table.get("mscale_all_dim", 0) + 1
    return {**table, "mscale": (attention_factor * of_all - 1) / slope}


def _theta(rope: RopeConfig, default: float | None, source: str) -> float:
    theta = default if rope.theta is None else rope.theta
    if theta is None:
        raise BadCheckpoint(f"{source} lacks rope_theta; it needs a number > 0")
    return theta


def _by_layer(module: str, ropes: Mapping[str, RopeConfig], source: str) -> dict[str, Any]:
    """Return rope_parameters by layer type; one embedding for all layers is repeated."""
    if unknown := sorted(ropes.keys() - {ALL_LAYERS, FULL, SLIDING}):
        raise UnsupportedModel(
            f"{source}: rope_parameters has the layer types {quoted(unknown)}; supported are "
            f"{FULL} and {SLIDING}. Use another model"
        )
    if module.startswith("gemma4") and ropes == {ALL_LAYERS: RopeConfig()}:
        return {}  # mlx-lm and transformers have the same defaults
    tables = {}
    for layer_type in (FULL, SLIDING):
        rope = ropes.get(layer_type, ropes.get(ALL_LAYERS))
        if rope is not None:
            partial = rope.partial_rotary_factor
            tables[layer_type] = {
                **_table(rope),
                "rope_theta": _theta(rope, None, source),
                "partial_rotary_factor": 1.0 if partial is None else partial,
            }
    return {"rope_parameters": tables}


def _gemma3(
    ropes: Mapping[str, RopeConfig], text: Mapping[str, Any], source: str
) -> dict[str, Any]:
    rope = main_rope(ropes) or RopeConfig()
    local = ropes.get(SLIDING, RopeConfig(theta=text.get("rope_local_base_freq")))
    if local.kind != "default" or ropes.keys() - {ALL_LAYERS, FULL, SLIDING}:
        raise UnsupportedModel(
            f"{source}: rope_parameters has {quoted(sorted(ropes))} with the rope_type "
            f"{local.kind} in windowed layers, which Gemma 3 models do not support; use another "
            "model"
        )
    return {
        "rope_theta": _theta(rope, ROPE_STYLES["gemma3"].theta, source),
        "rope_scaling": None if rope.kind == "default" else _table(rope),
        "rope_local_base_freq": _theta(local, _LOCAL_THETA, source),
    }


def _rotary_dim(rope: RopeConfig, text: Mapping[str, Any], source: str) -> int:
    """Return MiniMax's number of rotated elements of a head."""
    stated = text.get("rotary_dim")
    if stated is not None and rope.partial_rotary_factor is None:
        if not isinstance(stated, int) or stated < 1:
            raise BadCheckpoint(f"{source}: rotary_dim is {quoted(stated)}; it needs a number > 0")
        return stated
    head_dim = text.get("head_dim")
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int):
        head_dim = hidden // heads
    if not isinstance(head_dim, int):
        raise BadCheckpoint(f"{source}: head_dim is {quoted(head_dim)}; it needs a whole number")
    factor = 1.0 if rope.partial_rotary_factor is None else rope.partial_rotary_factor
    rotated = int(head_dim * factor)
    if stated is not None and stated != rotated:
        raise BadCheckpoint(
            f"{source}: rotary_dim is {quoted(stated)} and partial_rotary_factor {factor} of "
            f"head_dim {head_dim} is {rotated}; they need to be the same"
        )
    return rotated
