"""What is to be converted: found, opened, and recognised by what it holds.

A source is a configuration, tensors by name that are read when asked, and a folder of side
files. The kind is read from the configuration and the files, never from a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dflash_mlx.convert import safetensors
from dflash_mlx.convert.sources import gguf, torch_files
from dflash_mlx.convert.sources.location import SourceLocation
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint, UnsupportedModel
from dflash_mlx.hub.download import spelled_bytes
from dflash_mlx.models.draft.config_file import is_draft_config
from dflash_mlx.system.json_file import read_json

Kind = Literal["target", "DFlash draft", "DFlash 2 draft"]
_PACKED_BY_MLX = ("affine", "mxfp4", "mxfp8", "nvfp4")
_READ_BY_MLX_LM = ("mxfp4", "mxfp8")
"""Methods of `quantization_config` whose weights mlx-lm keeps packed as they are."""


@dataclass(frozen=True)
class ModelSource:
    """One model to convert. `made` holds side files that exist only as metadata (GGUF)."""

    located: SourceLocation
    kind: Kind
    form: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Rows]
    made: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_draft(self) -> bool:
        """Whether it is a draft rather than a target."""
        return self.kind != "target"

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.located.name

    @property
    def folder(self) -> Path | None:
        """Where its side files lie; None where there are none."""
        return None if self.made else self.located.folder

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """How its weights are packed already, as mlx-lm says it; None if they are not."""
        entry = self.config.get("quantization") or self.config.get("quantization_config")
        if not entry:
            return None
        if entry.get("quant_method") in _READ_BY_MLX_LM:
            group_size = 32
            mode = entry["quant_method"]
            return {"group_size": group_size, "bits": int(mode[-1]), "mode": mode}
        return dict(entry)

    def described(self) -> str:
        """The kind, form, architecture and size, for a person."""
        architecture = self.config.get("model_type") or "no family"
        size = spelled_bytes(safetensors.total_bytes(self.tensors))
        packed = f", already packed ({self.quantization['bits']} bits)" if self.quantization else ""
        return (
            f"{self.kind}, {self.form}, {architecture}, {len(self.tensors)} tensors, {size}{packed}"
        )


def open_source(located: SourceLocation) -> ModelSource:
    """Return the source at a place, its headers checked and no weight read.

    Raises:
        BadCheckpoint: files are missing, malformed or do not belong together.
        UnsupportedModel: nothing here can be converted, and why.
    """
    if located.file and located.file.suffix == ".gguf":
        model = gguf.open_gguf(located.file)
        return ModelSource(located, "target", "GGUF", model.config, model.tensors, model.made)
    config = read_json(located.folder / "config.json")
    _refuse_foreign_packing(config, located.name)
    if located.file and located.file.suffix == ".safetensors":
        form, tensors = "safetensors", safetensors.read_file(located.file)
    elif located.file:
        form, tensors = "PyTorch", torch_files.read_file(located.file)
    elif any(located.folder.glob("*.safetensors")):
        form, tensors = "safetensors", safetensors.read_folder(located.folder)
    else:
        form, tensors = "PyTorch", torch_files.read_folder(located.folder)
    if not tensors:
        raise BadCheckpoint(f"{located.name} holds no weights; fetch it again")
    if config.get("quantization"):
        form = "MLX"
    if "speculators_model_type" in config:
        form += " in speculators layout"
    return ModelSource(located, kind_of(config), form, config, tensors)


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Return what a `config.json` describes."""
    if not is_draft_config(config):
        return "target"
    architectures = config.get("architectures") or []
    second = config.get("speculators_model_type") == "dflash2" or any(
        "DFlash2" in name for name in architectures
    )
    return "DFlash 2 draft" if second else "DFlash draft"


def _refuse_foreign_packing(config: Mapping[str, Any], name: str) -> None:
    if config.get("quantization"):
        entry = config["quantization"]
        sound = isinstance(entry, Mapping) and all(
            isinstance(entry.get(key), int) for key in ("bits", "group_size")
        )
        if not sound or entry.get("mode", "affine") not in _PACKED_BY_MLX:
            raise BadCheckpoint(
                f"{name}: quantization is {entry!r}; it needs bits, group_size and a mode that MLX "
                "knows. Correct config.json"
            )
        return
    entry = config.get("quantization_config")
    method = entry.get("quant_method") if isinstance(entry, Mapping) else entry
    if method and method not in _READ_BY_MLX_LM:
        raise UnsupportedModel(
            f"{name} is quantized already, by {method!r}, which MLX has no form for; convert the "
            "model that it was made from"
        )
