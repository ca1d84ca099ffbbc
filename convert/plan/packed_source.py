"""Sources that are quantized already: their weights are copied, or dequantized on request.

Quantizing twice loses more than quantizing once, so it needs an explicit `--dequantize`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from dflash_mlx.convert.plan.layout import PACKED, TensorLayout
from dflash_mlx.convert.plan.recipe import QuantizationRecipe, role_of
from dflash_mlx.convert.plan.weights import chosen_quantization, packed_settings
from dflash_mlx.convert.quantize import dequantize_rows
from dflash_mlx.convert.tensors import Carrier, Rows, from_mlx, mlx_dtype, to_mlx
from dflash_mlx.errors import BadCheckpoint, BadRequest


@dataclass(frozen=True)
class DequantizedRows:
    """The values of a quantized weight. `biases` is None for the modes that have none."""

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
        assert weight is not None, "a quantized weight has packed words"
        assert scales is not None, "a quantized weight has scales"
        if self.settings["mode"] == "affine":
            # MLX multiplies packed weights in float32; a 16-bit type would round the values
            scales = scales.astype(mx.float32)
            biases = biases if biases is None else biases.astype(mx.float32)
        values = dequantize_rows(weight, scales, biases, self.settings)
        return from_mlx(values.astype(mlx_dtype(self.dtype)))


def dequantized_layout(
    layout: TensorLayout, settings: Mapping[str, Any], source: str, dtype: str | None = None
) -> TensorLayout:
    """Return the layout with the values of every quantized weight.

    Args:
        layout: tensors of the source.
        settings: the source's quantization entry.
        source: name of the source for messages.
        dtype: type of the values; None takes the type of the scales.

    Raises:
        BadCheckpoint: the shapes of a quantized weight contradict its settings.
    """
    tensors = dict(layout.tensors)
    for path in _packed_paths(layout):
        own = packed_settings(path, settings, source)
        _check_parts(layout, path, own, source)
        weight, scales = tensors[f"{path}.weight"], tensors.pop(f"{path}.scales")
        biases = tensors.pop(f"{path}.biases", None)
        # scales of the mx formats are exponents, so they cannot give the type of the values
        natural = scales.dtype if own["mode"] == "affine" else "BF16"
        tensors[f"{path}.weight"] = DequantizedRows(weight, scales, biases, own, dtype or natural)
    return replace(layout, tensors=tensors)


def _check_parts(layout: TensorLayout, path: str, settings: Mapping[str, Any], source: str) -> None:
    """Check that words, scales and biases of a weight have the shapes and types of `settings`."""
    weight, scales = layout.tensors.get(f"{path}.weight"), layout.tensors[f"{path}.scales"]
    biases = layout.tensors.get(f"{path}.biases")
    group_size, bits = settings["group_size"], settings["bits"]
    affine = settings["mode"] == "affine"
    fits = (
        weight is not None
        and len(weight.shape) >= 2
        and weight.shape[:-1] == scales.shape[:-1]
        and weight.dtype == "U32"
        and weight.shape[-1] * 32 == scales.shape[-1] * group_size * bits
        and (scales.dtype in ("F32", "F16", "BF16") if affine else scales.dtype == "U8")
        and (biases is not None) == affine
        and (biases is None or (biases.shape, biases.dtype) == (scales.shape, scales.dtype))
    )
    if not fits:
        words = "no" if weight is None else f"{weight.dtype} {list(weight.shape)}"
        raise BadCheckpoint(
            f"{source}: {path} has {words} words, {scales.dtype} {list(scales.shape)} scales and "
            f"{'no ' if biases is None else ''}biases, which is not {bits} bits in groups of "
            f"{group_size} ({settings['mode']}); correct the quantization entry of config.json"
        )


def check_packed_weights(
    layout: TensorLayout,
    settings: Mapping[str, Any],
    recipe: QuantizationRecipe,
    tied: bool,
    source: str,
) -> None:
    """Check that every quantized weight of the source already is what the recipe requests.

    Raises:
        BadRequest: a weight is not; quantizing it again needs `--dequantize`.
    """
    for path in _packed_paths(layout):
        found = packed_settings(path, settings, source)
        wanted = chosen_quantization(recipe, layout, path, role_of(path, tied))
        if wanted is None or wanted.settings() != found:
            requested = "no quantization" if wanted is None else str(wanted)
            raise BadRequest(
                f"{source} is already quantized: {path} has {found['bits']} bits in groups of "
                f"{found['group_size']} ({found['mode']}), and the options request {requested}. "
                "Convert the original model, keep the weights as they are (no --bits), or add "
                "--dequantize to quantize the rounded values again"
            )


def _packed_paths(layout: TensorLayout) -> list[str]:
    suffix = PACKED[0]
    return [name.removesuffix(suffix) for name in layout.tensors if name.endswith(suffix)]
