"""Tensors of a target under mlx-lm's names, by mlx-lm's own `sanitize` of the family.

`sanitize` renames, drops, stacks experts, splits tensors and shifts norms.
"""

import json
from collections.abc import Mapping
from typing import Any

import mlx.nn as nn

from dflash_mlx.convert.plan.layout import TensorLayout, check_complete
from dflash_mlx.convert.plan.trace import trace_rule
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.models.targets.config_file import read_target_config
from dflash_mlx.models.targets.model_types import is_supported
from dflash_mlx.system.foreign import quoted, reading, shorten


def build_model(config: Mapping[str, Any], source: str) -> nn.Module:
    """Return mlx-lm's model for a `config.json`; its weights are not evaluated.

    Raises:
        UnsupportedModel: mlx-lm does not know the family, or the checkpoint brings its own code.
        BadCheckpoint: the configuration lacks a key that the family needs.
    """
    # mlx-lm takes most of a second to import, and drafts do not need it
    from mlx_lm.utils import _get_classes

    if "model_file" in config:
        raise UnsupportedModel(
            f"{source}: config.json names the code file {quoted(config['model_file'])}; code from "
            "a checkpoint is never executed, convert a model of a family that mlx-lm implements"
        )
    family = config.get("model_type")
    if not isinstance(family, str):
        raise BadCheckpoint(f"{source}: config.json has no model_type; download the model again")
    with reading(
        source,
        f"config.json of family {quoted(family)}",
        "install a newer mlx-lm",
        UnsupportedModel,
    ):
        model_class, arguments = _get_classes(dict(config))
    # families that only mlx-lm runs are converted with the keys as they are
    spelled = read_target_config(config, source).values if is_supported(config) else config
    values = json.loads(json.dumps(spelled))  # mlx-lm's arguments change nested tables
    with reading(
        source,
        f"config.json of family {quoted(family)}",
        "download it again",
    ):
        model: nn.Module = model_class(arguments.from_dict(values))
    return model


def _check_counts(config: Mapping[str, Any], tensors: Mapping[str, Rows], source: str) -> None:
    """Check that the weights can fill the layers and experts that the configuration declares.

    mlx-lm's constructors would loop over a declared count of any size. Every layer has a tensor;
    every expert has a tensor, or an element of the first axis of one.
    """
    largest = max((max(rows.shape, default=0) for rows in tensors.values()), default=0)
    inner = config.get("text_config")
    for table in (config, inner if isinstance(inner, Mapping) else {}):
        for key, value in table.items():
            words = str(key).split("_")
            limit = len(tensors) if words[-1] in ("layers", "layer") else max(len(tensors), largest)
            counts = words[-1] in ("layers", "layer", "experts") and words[0] in ("num", "n")
            if counts and isinstance(value, int | float) and value > limit:
                raise BadCheckpoint(
                    f"{source}: config.json has {shorten(str(key))} {quoted(value)}, and the files "
                    f"contain {len(tensors)} tensors; check that config.json belongs to these "
                    "weights"
                )


def target_layout(
    config: Mapping[str, Any], tensors: Mapping[str, Rows], source: str
) -> TensorLayout:
    """Return the layout of a target whose files hold `tensors`.

    Raises:
        BadCheckpoint: a tensor is missing, unexpected or misshapen.
        UnsupportedModel: mlx-lm does not know the family, or its `sanitize` cannot be traced.
    """
    _check_counts(config, tensors, source)
    model = build_model(config, source)
    renamed = sanitized_tensors(model, tensors, source)
    check_complete(renamed, model, source)
    predicate = getattr(model, "quant_predicate", None)
    with reading(source, "its config.json", "download it again"):
        quantizable = {
            path: predicate(path, module) if predicate else True
            for path, module in model.named_modules()
            if hasattr(module, "to_quantized")
        }
    return TensorLayout(renamed, quantizable, getattr(model, "cast_predicate", lambda name: True))


def sanitized_tensors(
    model: nn.Module, tensors: Mapping[str, Rows], source: str
) -> dict[str, Rows]:
    """Return the output of the model's `sanitize` over `tensors`, readable by row range."""
    if not hasattr(model, "sanitize"):
        return dict(tensors)
    with reading(
        source,
        f"the weights of family {quoted(model.model_type)}",
        "check that config.json belongs to these weights",
    ):
        return trace_rule(model.sanitize, tensors)
