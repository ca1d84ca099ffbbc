"""What a conversion will write: every output tensor with its place, before any is read.

The plan is the whole truth about the output files: names, types, shapes and offsets follow from
it, so a header is written before its data and a dry run can say the size to the byte.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.convert.options import Quantization
from dflash_mlx.convert.plan.layout import TensorLayout, first_names
from dflash_mlx.convert.plan.recipe import Choice, QuantizationRecipe, role_of
from dflash_mlx.convert.tensors import FLOATS, Rows, n_bytes, row_width
from dflash_mlx.errors import BadRequest


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Its size in the file."""
        return n_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the layout and the parts it becomes: itself, or weight, scales and biases.

    All parts have as many rows as `rows`. `dtype` is the type that values are cast to, before
    they are quantized where `quantization` is not None. `n_weights` counts the parameters of the
    model that it stands for: none for the scales of a packed source.
    """

    name: str
    role: str
    rows: Rows
    dtype: str
    quantization: Choice
    parts: tuple[StoredTensor, ...]
    n_weights: int

    @property
    def path(self) -> str:
        """The module that holds the tensor."""
        return self.name.rpartition(".")[0]

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.n_bytes for part in self.parts)


@dataclass(frozen=True)
class ShardPlan:
    """One file of weights."""

    name: str
    outputs: tuple[PlannedTensor, ...]

    def header(self) -> bytes:
        """The bytes before the data, in the safetensors format."""
        table: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        position = 0
        for output in self.outputs:
            for part in output.parts:
                end = position + part.n_bytes
                table[part.name] = {
                    "dtype": part.dtype,
                    "shape": list(part.shape),
                    "data_offsets": [position, end],
                }
                position = end
        raw = json.dumps(table, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw


@dataclass(frozen=True)
class WeightsPlan:
    """All files of weights, and the entry of `config.json` that tells how they are packed."""

    shards: tuple[ShardPlan, ...]
    quantization: Mapping[str, Any] | None
    left_plain: tuple[str, ...]
    """Paths that stay unquantized because their rows do not split into groups."""

    @property
    def outputs(self) -> list[PlannedTensor]:
        """Every output, in the order of the files."""
        return [output for shard in self.shards for output in shard.outputs]

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(output.n_bytes for output in self.outputs)

    @property
    def bits_per_weight(self) -> float:
        """Average width of a stored parameter, scales and biases included."""
        weights = sum(output.n_weights for output in self.outputs)
        return 8 * self.n_bytes / max(1, weights)

    def unchanged(self) -> bool:
        """Whether every output is a tensor of the source, bit for bit."""
        return all(
            output.quantization is None and output.dtype == output.rows.dtype
            for output in self.outputs
        )

    def fingerprint(self) -> str:
        """A hash of everything that shapes the files."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(shard.name.encode())
            digest.update(shard.header())
            digest.update(repr([output.quantization for output in shard.outputs]).encode())
        return digest.hexdigest()

    def bits_by_role(self) -> dict[str, float]:
        """Average bits of a weight for each role that the model has."""
        size: dict[str, int] = {}
        count: dict[str, int] = {}
        for output in self.outputs:
            size[output.role] = size.get(output.role, 0) + output.n_bytes
            count[output.role] = count.get(output.role, 0) + output.n_weights
        return {role: round(8 * size[role] / max(1, count[role]), 3) for role in sorted(size)}


def plan_weights(
    layout: TensorLayout,
    recipe: QuantizationRecipe | None,
    dtype: str | None,
    tied: bool,
    kept: Mapping[str, Any] | None = None,
    keep_undivided: bool = False,
    shard_bytes: int = 5_000_000_000,
) -> WeightsPlan:
    """Return the plan for a layout; without a recipe nothing is quantized.

    `kept` is the source's own quantization entry, for weights that stay packed as they are.

    Raises:
        BadRequest: a group size does not divide a weight's rows, or a recipe names unknown paths.
    """
    if recipe:
        recipe.check_used(layout.quantizable)
    outputs, plain = [], []
    for name in sorted(layout.tensors, key=_natural):
        rows = layout.tensors[name]
        role = role_of(name, tied)
        path = name.removesuffix(".weight")
        choice = None
        if recipe and name.endswith(".weight") and path in layout.quantizable:
            choice = (
                None if layout.is_packed(path) else chosen_quantization(recipe, layout, path, role)
            )
        if choice and row_width(rows.shape) % choice.group_size:
            plain.append(path)
            choice = None
        cast = dtype and rows.dtype in FLOATS and layout.cast(name) and not _is_packed(layout, name)
        kind = dtype if dtype and cast else rows.dtype
        n_weights = _n_weights(layout, name, kept)
        outputs.append(
            PlannedTensor(
                name, role, rows, kind, choice, _parts(name, rows, kind, choice), n_weights
            )
        )
    if plain and not keep_undivided:
        widths = sorted({row_width(layout.tensors[f"{path}.weight"].shape) for path in plain})
        raise BadRequest(
            f"groups do not divide the rows of {first_names(plain)} (row lengths {widths}); use a "
            "smaller --group-size, or leave them unquantized with --keep-undivided"
        )
    base = recipe.base if recipe else None
    return WeightsPlan(
        tuple(_shards(outputs, shard_bytes)), _settings(outputs, base, layout, kept), tuple(plain)
    )


_PART_ORDER = {"weight": "0", "scales": "1", "biases": "2"}


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Order layers by number, and packed parts as quantizing orders them."""
    path, _, last = name.rpartition(".")
    parts = [*path.split("."), _PART_ORDER.get(last, last)]
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _is_packed(layout: TensorLayout, name: str) -> bool:
    return layout.is_packed(name.rpartition(".")[0])


def chosen_quantization(
    recipe: QuantizationRecipe, layout: TensorLayout, path: str, role: str
) -> Choice:
    """Return what a recipe means for a module that its family has a say in."""
    asked = layout.quantizable[path]
    if asked is False:
        return None
    if isinstance(asked, Mapping) and not recipe.singles_out(path, role):
        # routers and the like: the family knows better than a table of roles
        mode = asked.get("mode", "affine")
        return Quantization(asked["bits"], asked["group_size"], mode)
    return recipe.choose(path, role)


def _parts(name: str, rows: Rows, dtype: str, choice: Choice) -> tuple[StoredTensor, ...]:
    if choice is None:
        return (StoredTensor(name, dtype, rows.shape),)
    leading, width = rows.shape[:-1], rows.shape[-1]
    scales = "U8" if choice.mode != "affine" else dtype
    path = name.removesuffix(".weight")
    packed, groups = (*leading, width * choice.bits // 32), (*leading, width // choice.group_size)
    parts = [StoredTensor(name, "U32", packed), StoredTensor(f"{path}.scales", scales, groups)]
    if choice.mode == "affine":
        parts.append(StoredTensor(f"{path}.biases", scales, groups))
    return tuple(parts)


def _n_weights(layout: TensorLayout, name: str, kept: Mapping[str, Any] | None) -> int:
    path = name.rpartition(".")[0]
    if not kept or not layout.is_packed(path):
        return math.prod(layout.tensors[name].shape)
    if not name.endswith(".weight"):
        return 0
    bits: int = packed_settings(path, kept)["bits"]
    return math.prod(layout.tensors[name].shape) * 32 // bits


def _settings(
    outputs: Iterable[PlannedTensor],
    base: Choice,
    layout: TensorLayout,
    kept: Mapping[str, Any] | None,
) -> dict[str, Any] | None:
    """Return mlx-lm's `quantization` entry: the usual settings, and each path that differs."""
    packed = {path for path in layout.quantizable if layout.is_packed(path)}
    found = {
        output.name.removesuffix(".weight"): output.quantization.settings()
        for output in outputs
        if output.quantization
    }
    if not found:
        return dict(kept) if kept and packed else None
    usual = base.settings() if base else next(iter(found.values()))
    settings: dict[str, Any] = dict(usual)
    for path in sorted(packed):
        found[path] = packed_settings(path, kept or {})
    settings |= {path: found[path] for path in sorted(found) if found[path] != usual}
    return settings


def packed_settings(path: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a source's quantization entry gives the module at `path`."""
    own = kept.get(path)
    entry = own if isinstance(own, Mapping) else kept
    return {
        "group_size": entry["group_size"],
        "bits": entry["bits"],
        "mode": entry.get("mode", "affine"),
    }


def _shards(outputs: list[PlannedTensor], shard_bytes: int) -> Iterable[ShardPlan]:
    groups: list[list[PlannedTensor]] = []
    size = 0
    for output in outputs:
        if not groups or (size + output.n_bytes > shard_bytes and groups[-1]):
            groups.append([])
            size = 0
        groups[-1].append(output)
        size += output.n_bytes
    if len(groups) == 1:
        yield ShardPlan("model.safetensors", tuple(groups[0]))
        return
    for number, group in enumerate(groups, 1):
        yield ShardPlan(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
