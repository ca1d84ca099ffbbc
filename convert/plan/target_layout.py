"""A target's tensors under mlx-lm's names, by mlx-lm's own rule for the family.

The rule is the family's `sanitize`: it renames, drops, stacks experts, splits, shifts norms.
This file knows mlx-lm's models; how a rule is followed without loading its tensors is `trace`.
"""

from collections.abc import Mapping
from typing import Any

import mlx.nn as nn

from dflash_mlx.convert.plan.layout import TensorLayout, check_complete
from dflash_mlx.convert.plan.trace import trace_rule
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel


def build_model(config: Mapping[str, Any], source: str) -> nn.Module:
    """Return mlx-lm's model for a `config.json`, its weights not yet computed.

    Raises:
        UnsupportedModel: mlx-lm has no such family, or it needs code from the checkpoint.
        BadCheckpoint: the configuration lacks what the family needs.
    """
    # mlx-lm takes most of a second to import, and drafts do not need it
    from mlx_lm.utils import _get_classes

    if "model_file" in config:
        raise UnsupportedModel(
            f"{source} wants to run its own {config['model_file']!r}; code from a checkpoint is "
            "never executed here"
        )
    if not isinstance(config.get("model_type"), str):
        raise BadCheckpoint(f"{source}: config.json names no model_type; fetch it again")
    try:
        model_class, arguments = _get_classes(dict(config))
    except ValueError as error:
        raise UnsupportedModel(
            f"{source} is of family {config['model_type']!r}, which the installed mlx-lm does not "
            "know; try a newer mlx-lm"
        ) from error
    try:
        model: nn.Module = model_class(arguments.from_dict(dict(config)))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadCheckpoint(
            f"{source}: mlx-lm cannot build {config['model_type']!r} from config.json ({error})"
        ) from error
    return model


def target_layout(
    config: Mapping[str, Any], tensors: Mapping[str, Rows], source: str
) -> TensorLayout:
    """Return the layout of a target whose files hold `tensors`.

    Raises:
        BadCheckpoint: tensors are missing, left over or misshapen.
        UnsupportedModel: a family that mlx-lm does not know or whose rule cannot be traced.
    """
    model = build_model(config, source)
    renamed = sanitized_tensors(model, tensors, source)
    check_complete(renamed, model, source)
    predicate = getattr(model, "quant_predicate", None)
    quantizable = {
        path: predicate(path, module) if predicate else True
        for path, module in model.named_modules()
        if hasattr(module, "to_quantized")
    }
    return TensorLayout(renamed, quantizable, getattr(model, "cast_predicate", lambda name: True))


def sanitized_tensors(
    model: nn.Module, tensors: Mapping[str, Rows], source: str
) -> dict[str, Rows]:
    """Return what the model's `sanitize` makes of `tensors`, as rows that are read when asked."""
    if not hasattr(model, "sanitize"):
        return dict(tensors)
    try:
        return trace_rule(model.sanitize, tensors)
    except (KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
        raise BadCheckpoint(
            f"{source}: mlx-lm's rule for {model.model_type!r} does not fit these tensors "
            f"({type(error).__name__}: {error}); check that config.json belongs to them"
        ) from error
