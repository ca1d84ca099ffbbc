"""The weight files of a conversion: every tensor with its type, shape, quantization and offset.

The plan fixes the files completely, so a header is written before its data.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_mlx.convert.options import Quantization
from dflash_mlx.convert.tensors import Rows, n_bytes


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of an output file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Size in the file, in bytes."""
        return n_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the layout and what is stored for it.

    Args:
        name: name in the layout.
        role: role in the model, see `role_of`.
        rows: the values of the source.
        dtype: type that the values are cast to, before quantization.
        quantization: None leaves the tensor unquantized.
        parts: the tensor itself, or weight, scales and biases; each has as many rows as `rows`.
        n_weights: number of model parameters; 0 for the scales of a quantized source.
    """

    name: str
    role: str
    rows: Rows
    dtype: str
    quantization: Quantization | None
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
        """Return the bytes before the data, in the safetensors format."""
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
    """All files of weights, and the quantization entry of `config.json` that describes them.

    `left_plain` lists modules that stay unquantized because groups do not divide their rows.
    """

    shards: tuple[ShardPlan, ...]
    quantization: Mapping[str, Any] | None
    left_plain: tuple[str, ...]

    @property
    def outputs(self) -> list[PlannedTensor]:
        """Every planned tensor, in the order of the files."""
        return [output for shard in self.shards for output in shard.outputs]

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(output.n_bytes for output in self.outputs)

    @property
    def bits_per_weight(self) -> float:
        """Average bits per parameter, scales and biases included."""
        weights = sum(output.n_weights for output in self.outputs)
        return 8 * self.n_bytes / max(1, weights)

    def unchanged(self) -> bool:
        """Return whether every output has the values and the type of a source tensor."""
        return all(
            output.quantization is None and output.dtype == output.rows.dtype
            for output in self.outputs
        )

    def fingerprint(self) -> str:
        """Return a hash of everything that determines the files, weights excepted."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(shard.name.encode())
            digest.update(shard.header())
            digest.update(repr([output.quantization for output in shard.outputs]).encode())
        return digest.hexdigest()

    def bits_by_role(self) -> dict[str, float]:
        """Return the average bits per parameter of each role in the model."""
        size: dict[str, int] = {}
        count: dict[str, int] = {}
        for output in self.outputs:
            size[output.role] = size.get(output.role, 0) + output.n_bytes
            count[output.role] = count.get(output.role, 0) + output.n_weights
        return {role: round(8 * size[role] / max(1, count[role]), 3) for role in sorted(size)}


def split_into_shards(outputs: Iterable[PlannedTensor], shard_bytes: int) -> tuple[ShardPlan, ...]:
    """Return `outputs` in files of at most `shard_bytes`; a larger tensor has its own file."""
    groups: list[list[PlannedTensor]] = []
    size = 0
    for output in outputs:
        if not groups or (size + output.n_bytes > shard_bytes and groups[-1]):
            groups.append([])
            size = 0
        groups[-1].append(output)
        size += output.n_bytes
    if len(groups) == 1:
        return (ShardPlan("model.safetensors", tuple(groups[0])),)
    return tuple(
        ShardPlan(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    )
