"""An opened source: its configuration, its tensors, and its kind, read from its content.

It must not know what a conversion does with the tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.convert import safetensors
from dflash_mlx.convert.options import is_quantization
from dflash_mlx.convert.sources import gguf, torch_files
from dflash_mlx.convert.sources.location import SourceLocation
from dflash_mlx.convert.sources.remote_shards import RemoteShards
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.hub.download import spelled_bytes
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import is_draft_config, read_draft_config
from dflash_mlx.pairs.model_files import check_folder
from dflash_mlx.system.foreign import quoted, reading
from dflash_mlx.system.json_file import read_json

ModelKind = Literal["target", "DFlash draft", "DFlash 2 draft"]
_READ_BY_MLX_LM = ("mxfp4", "mxfp8")
"""Methods of `quantization_config` whose packed weights mlx-lm uses as they are."""
_MX_GROUP_SIZE = 32
"""Group size of both, by the OCP MX specification."""


@dataclass(frozen=True)
class ModelSource:
    """One model to convert.

    Args:
        location: where it is and where it came from.
        kind: target or draft.
        form: format of its files, for messages and the model card.
        config: its `config.json`.
        tensors: its tensors by name, readable by row range.
        made: side files built from metadata (GGUF); empty if side files are in the folder.
        shards: the weight files on the hub, if they are downloaded during the conversion.
    """

    location: SourceLocation
    kind: ModelKind
    form: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Rows]
    made: Mapping[str, bytes] = field(default_factory=dict)
    shards: RemoteShards | None = None

    @property
    def is_draft(self) -> bool:
        """Whether it is a draft rather than a target."""
        return self.kind != "target"

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.location.name

    @property
    def folder(self) -> Path | None:
        """The folder of its side files; None if it has none."""
        return None if self.made else self.location.folder

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """Its quantization entry in mlx-lm's form; None if its weights are not quantized."""
        entry = self.config.get("quantization") or self.config.get("quantization_config")
        if not entry:
            return None
        if entry.get("quant_method") in _READ_BY_MLX_LM:
            mode = entry["quant_method"]
            return {"group_size": _MX_GROUP_SIZE, "bits": int(mode[-1]), "mode": mode}
        return dict(entry)

    def draft_config(self) -> DraftConfig:
        """Return the configuration of a draft.

        Raises:
            BadCheckpoint: a key is missing or has an impossible value.
            UnsupportedModel: the draft is of another kind.
        """
        with reading(self.name, "its config.json", "download it again"):
            return read_draft_config(self.config, self.name)

    def described(self) -> str:
        """Return kind, form, family and size in one line."""
        family = self.config.get("model_type") or "no model_type"
        size = spelled_bytes(safetensors.total_bytes(self.tensors))
        packed = f", quantized to {self.quantization['bits']} bits" if self.quantization else ""
        return f"{self.kind}, {self.form}, {family}, {len(self.tensors)} tensors, {size}{packed}"


def open_source(location: SourceLocation) -> ModelSource:
    """Return the source at a location; its headers are checked and no weight is read.

    Raises:
        BadCheckpoint: files are missing, malformed or inconsistent.
        UnsupportedModel: the format cannot be converted; the message gives the reason.
    """
    file, folder = location.file, location.folder
    suffix = file.suffix.lower() if file else None
    if file and suffix == ".gguf":
        with reading(file, "the GGUF file", "download the model again"):
            model = gguf.open_gguf(file)
        return ModelSource(location, "target", "GGUF", model.config, model.tensors, model.made)
    with reading(folder, "the configuration", "download the model again"):
        check_folder(folder)  # refuses models and tokenizers that need their own code
    config = checked_config(read_json(folder / "config.json"), location.name)
    with reading(file or folder, "the weights", "download the model again"):
        if file and suffix == ".safetensors":
            form, tensors = "safetensors", safetensors.read_file(file)
        elif file:
            form, tensors = "PyTorch", torch_files.read_file(file)
        elif any(folder.glob("*.safetensors")):
            form, tensors = "safetensors", safetensors.read_folder(folder)
        else:
            form, tensors = "PyTorch", torch_files.read_folder(folder)
    if not tensors:
        raise BadCheckpoint(f"{location.name} contains no weights; download the model again")
    with reading(folder / "config.json", "the kind of model", "download the model again"):
        kind = kind_of(config)
    return ModelSource(location, kind, source_form(config, form), config, tensors)


def source_form(config: Mapping[str, Any], files: str) -> str:
    """Return the format of a source for messages, from its configuration and its files' format."""
    form = "MLX" if config.get("quantization") else files
    return f"{form} in speculators layout" if "speculators_model_type" in config else form


def kind_of(config: Mapping[str, Any]) -> ModelKind:
    """Return the kind of model that a `config.json` describes."""
    if not is_draft_config(config):
        return "target"
    architectures = config.get("architectures") or []
    second = config.get("speculators_model_type") == "dflash2" or any(
        "DFlash2" in str(name) for name in architectures
    )
    return "DFlash 2 draft" if second else "DFlash draft"


_TYPES: dict[str, tuple[type, str]] = {
    "architectures": (list, "a list of names"),
    "model_type": (str, "a name"),
    "text_config": (dict, "an object"),
    "quantization": (dict, "an object"),
}
"""Keys that are read here, with the type that their values need."""
_MAX_DEPTH = 32
"""Nesting of a `config.json`; published ones have at most 5 levels. Writing a table recurses."""


def checked_config(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a `config.json` after checking the keys that this package reads.

    Raises:
        BadCheckpoint: a value has the wrong type, or the file is nested too deeply.
        UnsupportedModel: the weights are quantized in a way that MLX cannot use.
    """
    for key, (needed, described) in _TYPES.items():
        value = config.get(key)
        if value is not None and not isinstance(value, needed):
            raise BadCheckpoint(
                f"{name}: config.json has {key} {quoted(value)}; it needs {described}, "
                "download the model again"
            )
    if not all(isinstance(item, str) for item in config.get("architectures") or []):
        raise BadCheckpoint(
            f"{name}: config.json has architectures {quoted(config['architectures'])}; it needs "
            "names, download the model again"
        )
    if _depth(config) > _MAX_DEPTH:
        raise BadCheckpoint(
            f"{name}: config.json is nested more than {_MAX_DEPTH} levels deep; download the model "
            "again"
        )
    if entry := config.get("quantization"):
        if not is_quantization(entry):
            raise BadCheckpoint(
                f"{name}: config.json has quantization {quoted(entry)}; it needs bits, group_size "
                "and a mode that MLX supports, correct config.json"
            )
        return config
    entry = config.get("quantization_config")
    method = entry.get("quant_method") if isinstance(entry, Mapping) else entry
    if entry and method not in _READ_BY_MLX_LM:
        if isinstance(entry, Mapping) and method is None and is_quantization(entry):
            return config
        raise UnsupportedModel(
            f"{name} is already quantized by {quoted(method or entry)}, which MLX cannot use; "
            "convert the model that it was made from"
        )
    return config


def _depth(value: Any) -> int:
    """Return the nesting depth of a JSON value, up to one more than `_MAX_DEPTH`."""
    depth, level = 0, [value]
    while level and depth <= _MAX_DEPTH:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth
