"""Plans the weight files of a conversion from a layout and a recipe."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dflash_mlx.convert.options import Quantization, is_quantization
from dflash_mlx.convert.plan.files import (
    PlannedTensor,
    StoredTensor,
    WeightsPlan,
    split_into_shards,
)
from dflash_mlx.convert.plan.layout import TensorLayout, first_names
from dflash_mlx.convert.plan.recipe import QuantizationRecipe, role_of
from dflash_mlx.convert.tensors import FLOATS, Rows, row_width
from dflash_mlx.errors import BadCheckpoint, BadRequest
from dflash_mlx.system.foreign import quoted


def plan_weights(
    layout: TensorLayout,
    recipe: QuantizationRecipe | None,
    dtype: str | None,
    tied: bool,
    source_settings: Mapping[str, Any] | None = None,
    keep_undivided: bool = False,
    shard_bytes: int = 5_000_000_000,
) -> WeightsPlan:
    """Return the plan for a layout.

    Args:
        layout: the tensors to write.
        recipe: None quantizes nothing.
        dtype: type of unquantized tensors and of scales; None keeps the source's.
        tied: whether the embedding is the head too.
        source_settings: the source's quantization entry, for weights that stay quantized.
        keep_undivided: leave weights unquantized if groups do not divide their rows.
        shard_bytes: largest size of one file.

    Raises:
        BadRequest: groups do not divide a weight's rows, or a recipe names unknown paths.
    """
    if recipe:
        recipe.check_patterns(layout.quantizable)
    outputs, plain = [], []
    for name in sorted(layout.tensors, key=_natural_order):
        output = _planned_tensor(name, layout, recipe, dtype, tied, source_settings)
        path = name.removesuffix(".weight")
        wanted = _wanted(name, layout, recipe, output.role)
        if wanted and output.quantization is None:
            plain.append(path)
        outputs.append(output)
    if plain and not keep_undivided:
        lengths = sorted({row_width(layout.tensors[f"{path}.weight"].shape) for path in plain})
        raise BadRequest(
            f"groups do not divide the rows of {first_names(plain)} (row lengths {lengths}); use a "
            "smaller --group-size, or leave them unquantized with --keep-undivided"
        )
    base = recipe.base if recipe else None
    settings = _settings(outputs, base, layout, source_settings)
    return WeightsPlan(split_into_shards(outputs, shard_bytes), settings, tuple(plain))


def _planned_tensor(
    name: str,
    layout: TensorLayout,
    recipe: QuantizationRecipe | None,
    dtype: str | None,
    tied: bool,
    source_settings: Mapping[str, Any] | None,
) -> PlannedTensor:
    rows = layout.tensors[name]
    role = role_of(name, tied)
    wanted = _wanted(name, layout, recipe, role)
    if wanted and row_width(rows.shape) % wanted.group_size:
        wanted = None
    packed = layout.is_packed(name.rpartition(".")[0])
    cast = dtype and rows.dtype in FLOATS and layout.cast(name) and not packed
    stored = dtype if dtype and cast else rows.dtype
    parts = _parts(name, rows, stored, wanted)
    n_weights = _n_weights(layout, name, source_settings)
    return PlannedTensor(name, role, rows, stored, wanted, parts, n_weights)


def _wanted(
    name: str, layout: TensorLayout, recipe: QuantizationRecipe | None, role: str
) -> Quantization | None:
    """Return the quantization that the recipe requests for a tensor."""
    path = name.removesuffix(".weight")
    if not recipe or not name.endswith(".weight") or path not in layout.quantizable:
        return None
    return None if layout.is_packed(path) else chosen_quantization(recipe, layout, path, role)


_PART_ORDER = {"weight": "0", "scales": "1", "biases": "2"}


def _natural_order(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key: layers by number, parts of a weight in the order of `mx.quantize`."""
    path, _, last = name.rpartition(".")
    parts = [*path.split("."), _PART_ORDER.get(last, last)]
    return [(0, int(part)) if part.isascii() and part.isdigit() else (1, part) for part in parts]


def chosen_quantization(
    recipe: QuantizationRecipe, layout: TensorLayout, path: str, role: str
) -> Quantization | None:
    """Return the quantization of a module; the family's own settings precede those of a role."""
    requested = layout.quantizable[path]
    if requested is False:
        return None
    if isinstance(requested, Mapping) and not recipe.names_module(path, role):
        # mlx-lm's families fix the bits of routers and similar modules
        mode = requested.get("mode", "affine")
        return Quantization(requested["bits"], requested["group_size"], mode)
    return recipe.choose(path, role)


def _parts(
    name: str, rows: Rows, dtype: str, wanted: Quantization | None
) -> tuple[StoredTensor, ...]:
    if wanted is None:
        return (StoredTensor(name, dtype, rows.shape),)
    leading, width = rows.shape[:-1], rows.shape[-1]
    scales = "U8" if wanted.mode != "affine" else dtype
    path = name.removesuffix(".weight")
    words, groups = (*leading, width * wanted.bits // 32), (*leading, width // wanted.group_size)
    parts = [StoredTensor(name, "U32", words), StoredTensor(f"{path}.scales", scales, groups)]
    if wanted.mode == "affine":
        parts.append(StoredTensor(f"{path}.biases", scales, groups))
    return tuple(parts)


def _n_weights(layout: TensorLayout, name: str, settings: Mapping[str, Any] | None) -> int:
    path = name.rpartition(".")[0]
    if not settings or not layout.is_packed(path):
        return math.prod(layout.tensors[name].shape)
    if not name.endswith(".weight"):
        return 0
    bits: int = packed_settings(path, settings)["bits"]
    return math.prod(layout.tensors[name].shape) * 32 // bits


def _settings(
    outputs: Iterable[PlannedTensor],
    base: Quantization | None,
    layout: TensorLayout,
    source_settings: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Return mlx-lm's `quantization` entry: default settings, and each path that differs."""
    packed = {path for path in layout.quantizable if layout.is_packed(path)}
    found = {
        output.name.removesuffix(".weight"): output.quantization.settings()
        for output in outputs
        if output.quantization
    }
    if not found:
        return dict(source_settings) if source_settings and packed else None
    default = base.settings() if base else next(iter(found.values()))
    settings: dict[str, Any] = dict(default)
    for path in sorted(packed):
        found[path] = packed_settings(path, source_settings or {})
    settings |= {path: found[path] for path in sorted(found) if found[path] != default}
    return settings


def packed_settings(path: str, settings: Mapping[str, Any], source: str = "") -> dict[str, Any]:
    """Return the settings of the module at `path` in a quantization entry.

    Raises:
        BadCheckpoint: bits, group size or mode are not what MLX supports.
    """
    own = settings.get(path)
    entry = own if isinstance(own, Mapping) else settings
    found = {
        "group_size": entry.get("group_size"),
        "bits": entry.get("bits"),
        "mode": entry.get("mode", "affine"),
    }
    if not is_quantization(found):
        raise BadCheckpoint(
            f"{source}: the quantization of {path} is {quoted(own)}; it needs bits, group_size and "
            "a mode that MLX supports, correct config.json"
        )
    return found
