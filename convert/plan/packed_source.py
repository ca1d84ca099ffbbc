"""Sources that are quantized already: kept as they are, or unpacked first when that is asked for.

Quantizing twice loses more than quantizing once, so it never happens by accident: packed weights
are kept bit for bit, and a request for another width is refused with the way out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.convert.plan.layout import PACKED, TensorLayout
from dflash_mlx.convert.plan.recipe import QuantizationRecipe, role_of
from dflash_mlx.convert.plan.weights import chosen_quantization, packed_settings
from dflash_mlx.convert.tensors import Carrier, Rows, from_mlx, mlx_dtype, to_mlx
from dflash_mlx.errors import BadCheckpoint, BadRequest


@dataclass(frozen=True)
class DequantizedRows:
    """The values of a packed weight. `biases` is None for the modes that have none."""

    weight: Rows
    scales: Rows
    biases: Rows | None
    settings: Mapping[str, Any]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return (*self.scales.shape[:-1], self.scales.shape[-1] * self.settings["group_size"])

    def read(self, start: int, stop: int) -> Carrier:
        """Return rows `start` to `stop`."""
        weight, scales, biases = (
            None if rows is None else to_mlx(rows.read(start, stop), rows.dtype)
            for rows in (self.weight, self.scales, self.biases)
        )
        assert weight is not None, "a packed weight has words"
        assert scales is not None, "a packed weight has scales"
        if self.settings["mode"] == "affine":
            # products of packed weights are in float32 too; in the scales' type, values are rounded
            scales = scales.astype(mx.float32)
            biases = biases if biases is None else biases.astype(mx.float32)
        values = mx.dequantize(weight, scales, biases, **self.settings)
        return from_mlx(values.astype(mlx_dtype(self.dtype)))


def dequantized_layout(
    layout: TensorLayout, kept: Mapping[str, Any], source: str, dtype: str | None = None
) -> TensorLayout:
    """Return the layout with every packed weight as values, of the scales' type or of `dtype`.

    Raises:
        BadCheckpoint: a packed weight does not have the shape that its settings give it.
    """
    tensors = dict(layout.tensors)
    for path in _packed_paths(layout):
        settings = packed_settings(path, kept)
        weight, scales = tensors[f"{path}.weight"], tensors.pop(f"{path}.scales")
        biases = tensors.pop(f"{path}.biases", None)
        if weight.shape[-1] * 32 != scales.shape[-1] * settings["group_size"] * settings["bits"]:
            raise BadCheckpoint(
                f"{source}: {path} has {list(weight.shape)} words and {list(scales.shape)} scales, "
                f"which is not {settings['bits']} bits in groups of {settings['group_size']}; "
                "correct the quantization in config.json"
            )
        # scales of the mx formats are exponents and have no type to give
        own = scales.dtype if settings["mode"] == "affine" else "BF16"
        tensors[f"{path}.weight"] = DequantizedRows(weight, scales, biases, settings, dtype or own)
    return replace(layout, tensors=tensors)


def check_packed_weights(
    layout: TensorLayout,
    kept: Mapping[str, Any],
    recipe: QuantizationRecipe,
    tied: bool,
    source: str,
) -> None:
    """Check that every packed weight already is what the recipe asks for.

    Raises:
        BadRequest: one is not; quantizing again is possible and has to be said.
    """
    for path in _packed_paths(layout):
        found = packed_settings(path, kept)
        wanted = chosen_quantization(recipe, layout, path, role_of(path, tied))
        if wanted is None or wanted.settings() != found:
            asked = "unquantized" if wanted is None else str(wanted)
            raise BadRequest(
                f"{source} is quantized already: {path} has {found['bits']} bits in groups of "
                f"{found['group_size']} ({found['mode']}), and {asked} was asked for. Convert the "
                "original instead, keep it as it is (no --bits), or add --dequantize to quantize "
                "its rounded values again"
            )


def _packed_paths(layout: TensorLayout) -> list[str]:
    last = PACKED[0]
    return [name.removesuffix(last) for name in layout.tensors if name.endswith(last)]
