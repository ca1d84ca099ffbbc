"""Whether a folder holds a target or a draft that runs here, and whether the two fit together.

It must not read weights or import MLX: the checks run before a model is downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_mlx.errors import BadCheckpoint, PairMismatch, UnsupportedModel
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import is_draft_config, read_draft_config
from dflash_mlx.models.targets.config_file import TargetConfig, read_target_config
from dflash_mlx.system.foreign import quoted

_MAX_PADDING = 1024
"""Builds of one vocabulary are padded to multiples of up to 1024 rows, so two builds of a model
differ by less; vocabularies of different models differ by thousands."""


class TargetDimensions(Protocol):
    """The dimensions of a target that a draft depends on; `TargetShape` has them."""

    @property
    def hidden_size(self) -> int:
        """Elements of a hidden state."""

    @property
    def n_layers(self) -> int:
        """Decoder layers."""

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding, None where the configuration does not give it."""


@dataclass(frozen=True)
class ConfiguredDimensions:
    """`TargetDimensions` as a `config.json` gives them."""

    hidden_size: int
    n_layers: int
    vocab_size: int | None


def check_target_config(config: Mapping[str, Any], source: str) -> TargetConfig:
    """Return the configuration of a target in mlx-lm's spelling.

    Raises:
        UnsupportedModel: it is a draft, a target of another family, or needs mathematics that
            mlx-lm does not have.
        BadCheckpoint: a key is missing, contradictory, or has an impossible value.
    """
    if is_draft_config(config):
        raise UnsupportedModel(
            f"{source} holds a draft, not a target; give the model it was trained for as --model, "
            "and this one as --draft"
        )
    return read_target_config(config, f"{source}/config.json")


def check_draft_config(config: Mapping[str, Any], source: str) -> DraftConfig:
    """Return the draft's configuration.

    Raises:
        UnsupportedModel: it is a target, or a draft of a kind that does not run here.
        BadCheckpoint: a key is missing or has an impossible value.
    """
    if not is_draft_config(config):
        raise UnsupportedModel(
            f"{source} holds a {quoted(config.get('model_type'))} target, not a draft; give a "
            "DFlash draft as --draft, or --draft none"
        )
    return read_draft_config(config, f"{source}/config.json")


def configured_dimensions(config: Mapping[str, Any], source: str) -> ConfiguredDimensions:
    """Return the dimensions that a target's `config.json` gives.

    Raises:
        BadCheckpoint: one of them is missing or is not a number.
    """
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config

    def whole(*keys: str) -> int:
        value = next((text[key] for key in keys if text.get(key) is not None), None)
        if not isinstance(value, int):
            raise BadCheckpoint(
                f"{source}: {keys[-1]} is {quoted(value)}; config.json needs a whole number there"
            )
        return value

    vocab_size = text.get("vocab_size", config.get("vocab_size"))
    return ConfiguredDimensions(
        hidden_size=whole("hidden_size"),
        n_layers=whole("num_layers", "num_hidden_layers"),  # the first is LongCat-Flash's
        vocab_size=vocab_size if isinstance(vocab_size, int) else None,
    )


def check_pair(
    draft: DraftConfig, target: TargetDimensions, source: str, target_name: str = "this target"
) -> None:
    """Check that a draft's dimensions fit a target's; `source` names the draft in errors.

    Raises:
        PairMismatch: a dimension differs, or the draft refers to layers or tokens that the
            target does not have.
    """
    facts: list[tuple[str, int | None, int]] = [
        ("hidden size", draft.target_hidden_size or draft.hidden_size, target.hidden_size),
        # the draft's rows go through the target's embedding and head
        ("embeddings of size", draft.hidden_size, target.hidden_size),
        ("target layers", draft.num_target_layers, target.n_layers),
    ]
    if target.vocab_size is not None and (
        abs(draft.vocab_size - target.vocab_size) >= _MAX_PADDING
    ):
        facts.append(("a vocabulary of", draft.vocab_size, target.vocab_size))
    problems = [
        f"expects {what} {needed}, {target_name} has {actual}"
        for what, needed, actual in facts
        if needed is not None and needed != actual
    ]
    if (deepest := max(draft.target_layer_ids)) >= target.n_layers:
        problems.append(
            f"reads hidden states of layer {deepest}, {target_name} has layers 0 to "
            f"{target.n_layers - 1}"
        )
    if target.vocab_size is not None and draft.mask_token_id >= target.vocab_size:
        problems.append(
            f"masks with token {draft.mask_token_id}, {target_name} has {target.vocab_size} tokens"
        )
    if problems:
        raise PairMismatch(
            f"{source} {problems[0]}; give the draft that was trained for this target "
            "(dflash-mlx models lists pairs)"
        )
