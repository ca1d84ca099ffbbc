"""Tensors from files into a module: each name is used exactly once, each shape as declared.

It must not know configurations of targets or drafts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.loading.safetensors import read_checkpoint
from dflash_mlx.system.foreign import reading, reason


def read_safetensors(folder: Path) -> dict[str, mx.array]:
    """Return the tensors of a folder's checkpoint by name; their values are read when used.

    Raises:
        BadCheckpoint: a file is missing, truncated or malformed.
        UnsupportedModel: a tensor has an element type that MLX cannot hold.
    """
    tensors: dict[str, mx.array] = {}
    for name in read_checkpoint(folder):
        with reading(folder / name, "the weights"):
            loaded: Any = mx.load(str(folder / name), format="safetensors")
            tensors.update(loaded)
    return tensors


def fill(
    module: nn.Module,
    weights: Mapping[str, mx.array],
    source: str,
    quantization: Mapping[str, Any] | None = None,
) -> None:
    """Put `weights` into `module`; a layer with `.scales` beside its weight is quantized.

    `quantization` may hold the parameters of single layers by path, as mlx-lm's configurations
    do. Parameters of other layers are inferred from the shapes, so partly quantized checkpoints
    load without a configuration.

    Raises:
        BadCheckpoint: a tensor is missing, superfluous, or has another shape than declared.
    """
    settings = quantization or {}
    current = ""

    def parameters(path: str, layer: nn.Module) -> Any:
        nonlocal current
        current = path
        if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return settings.get(path) or infer_quant_config(path, layer, dict(weights))

    try:
        nn.quantize(module, class_predicate=parameters)
    except MemoryError:
        raise
    except Exception as error:
        raise BadCheckpoint(
            f"{source}: the quantization of {current} cannot be read ({reason(error)}); download "
            "the model again"
        ) from error
    check_tensors(dict(tree_flatten(module.parameters())), weights, source)
    module.load_weights(list(weights.items()))
    module.eval()


def check_tensors(
    wanted: Mapping[str, mx.array], weights: Mapping[str, mx.array], source: str
) -> None:
    """Check that `weights` holds the tensors `wanted`, all of them and no others.

    Raises:
        BadCheckpoint: a tensor is missing, superfluous, or has another shape.
    """
    missing = sorted(wanted.keys() - weights.keys())
    extra = sorted(weights.keys() - wanted.keys())
    if missing or extra:
        parts = [f"lacks {_first_names(missing)}"] if missing else []
        parts += [f"has no place for {_first_names(extra)}"] if extra else []
        raise BadCheckpoint(
            f"{source} {' and '.join(parts)}; the files do not match their config.json, download "
            "the model again"
        )
    for name, array in weights.items():
        if wanted[name].shape != array.shape:
            raise BadCheckpoint(
                f"{source}: {name} has shape {array.shape} and config.json gives it "
                f"{wanted[name].shape}; the files do not match, download the model again"
            )


def _first_names(names: list[str]) -> str:
    listed = ", ".join(names[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"
