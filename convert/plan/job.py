"""One model's conversion, fully decided: its source, the planned files and their settings."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.auto_recipe import auto_recipe
from dflash_mlx.convert.plan.computed import ComputedRows
from dflash_mlx.convert.plan.draft_layout import draft_layout, draft_module
from dflash_mlx.convert.plan.files import WeightsPlan
from dflash_mlx.convert.plan.layout import PACKED, TensorLayout, first_names
from dflash_mlx.convert.plan.packed_source import check_packed_weights, dequantized_layout
from dflash_mlx.convert.plan.recipe import QuantizationRecipe, named_recipe
from dflash_mlx.convert.plan.target_layout import target_layout
from dflash_mlx.convert.plan.weights import plan_weights
from dflash_mlx.convert.progress import ProgressCallback
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.convert.tensors import CHUNK_BYTES, FLOAT_NAMES, Rows, n_bytes
from dflash_mlx.convert.workers import N_WORKERS
from dflash_mlx.errors import BadCheckpoint, BadRequest
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.system.foreign import reading

_BASE_BYTES = 170_000_000
"""Python, MLX, mlx-lm and the headers of a folder. The whole estimate is 254 MB, and
benchmarks/convert_memory.py measures 206 to 228 MB."""
_CHUNKS_PER_WORKER = 5
"""A chunk as read, as an MLX array, and as weight, scales and biases of the result."""


@dataclass(frozen=True)
class ConversionJob:
    """The conversion of one model.

    Args:
        source: the opened source.
        plan: the files of weights to write.
        recipe: None if nothing is quantized.
        config: the `config.json` to write.
        values: the weights of the source as numbers, by the names of the layout.
        draft: the draft's configuration; None for a target.
        folder: place inside the output folder; empty for the output folder itself.
    """

    source: ModelSource
    plan: WeightsPlan
    recipe: QuantizationRecipe | None
    config: Mapping[str, Any]
    values: Mapping[str, Rows]
    draft: DraftConfig | None
    folder: str = ""

    @property
    def copies_source(self) -> bool:
        """Whether every weight is stored as in the source, quantized weights included."""
        still_quantized = (self.plan.quantization is None) == (self.source.quantization is None)
        return self.plan.unchanged() and still_quantized

    @property
    def n_source_bytes(self) -> int:
        """Bytes that writing reads."""
        return sum(n_bytes(output.rows.dtype, output.rows.shape) for output in self.plan.outputs)

    @property
    def peak_bytes(self) -> int:
        """Estimated resident memory while writing, without verification, in bytes."""
        computed = [
            output.rows.peak_bytes
            for output in self.plan.outputs
            if isinstance(output.rows, ComputedRows)
        ]
        chunks = N_WORKERS * _CHUNKS_PER_WORKER * CHUNK_BYTES
        return _BASE_BYTES + chunks + N_WORKERS * max(computed, default=0)


def plan_job(
    source: ModelSource, config: ConvertConfig, folder: str, watch: ProgressCallback
) -> ConversionJob:
    """Return the job that converts `source` under `config`.

    Raises:
        BadRequest: the options do not fit this source.
        BadCheckpoint: tensors are missing, unexpected or misshapen.
        UnsupportedModel: the family is not supported.
    """
    draft = source.draft_config() if source.is_draft else None
    layout = _layout(source, draft)
    tied = bool(source.config.get("tie_word_embeddings")) and draft is None
    settings = source.quantization
    if settings and config.dequantize:
        dtype_of_values = FLOAT_NAMES[config.dtype] if config.dtype else None
        layout = dequantized_layout(layout, settings, source.name, dtype_of_values)
        settings = None
    values = layout.tensors
    packed = [name for name in values if name.endswith(PACKED[0])]
    if packed and not settings:
        raise BadCheckpoint(
            f"{source.name} contains {first_names(packed)}, and config.json has no quantization "
            "entry; download it again"
        )
    if settings:
        values = dequantized_layout(layout, settings, source.name).tensors
    recipe = _recipe(source, config, layout, values, watch)
    if settings and recipe:
        check_packed_weights(layout, settings, recipe, tied, source.name)
    dtype = config.dtype or _source_dtype(source, recipe)
    plan = plan_weights(
        layout,
        recipe,
        FLOAT_NAMES[dtype] if dtype else None,
        tied,
        settings,
        config.keep_undivided,
        config.shard_bytes,
    )
    made = output_config(source.config, plan.quantization, dtype)
    return ConversionJob(source, plan, recipe, made, values, draft, folder)


def _layout(source: ModelSource, draft: DraftConfig | None) -> TensorLayout:
    if draft is None:
        return target_layout(source.config, source.tensors, source.name)
    if draft.num_hidden_layers > len(source.tensors):
        raise BadCheckpoint(
            f"{source.name}: config.json has num_hidden_layers {draft.num_hidden_layers}, and the "
            f"files contain {len(source.tensors)} tensors; check that config.json belongs to them"
        )
    with reading(source.name, "its config.json", "download it again"):
        module = draft_module(draft, source.tensors)
    return draft_layout(source.tensors, module, source.name)


def _recipe(
    source: ModelSource,
    config: ConvertConfig,
    layout: TensorLayout,
    values: Mapping[str, Rows],
    watch: ProgressCallback,
) -> QuantizationRecipe | None:
    """Return the recipe; None if no weight is to be quantized."""
    default = not config.sets_quantization
    if default and (config.dequantize or source.quantization):
        return None
    name = config.recipe
    if default and source.is_draft:
        name = "draft"
    if name and name.partition(":")[0] == "auto":
        if source.shards:
            raise BadRequest(
                f"recipe auto runs {source.name} before it is converted, which needs all of its "
                "weights; add --keep-original to download them first"
            )
        return auto_recipe(name, source, layout, values, config.base, watch)
    return named_recipe(name, config.base)


def _source_dtype(source: ModelSource, recipe: QuantizationRecipe | None) -> str | None:
    """Return the type of the weights in `config.json`, by the rule of mlx-lm's converter."""
    inner = source.config.get("text_config") or {}
    for found in (source.config.get("torch_dtype"), source.config.get("dtype"), inner.get("dtype")):
        if isinstance(found, str) and found in FLOAT_NAMES:
            return found
    # GGUF has no such key, and its scales are float16
    return "float16" if source.form == "GGUF" and recipe else None


def output_config(
    config: Mapping[str, Any], quantization: Mapping[str, Any] | None, dtype: str | None
) -> dict[str, Any]:
    """Return the output's `config.json`: the source's, with the output's quantization and type."""
    made = {
        key: value
        for key, value in config.items()
        if key not in ("quantization", "quantization_config", "auto_map", "_name_or_path")
    }
    if quantization:
        # mlx-lm reads the first name, the hub's model page the second
        made["quantization"] = made["quantization_config"] = dict(quantization)
    if dtype:
        made |= {key: dtype for key in ("dtype", "torch_dtype") if key in made} or {"dtype": dtype}
    return made


def fingerprint(jobs: Sequence[ConversionJob], config: ConvertConfig) -> str:
    """Return a hash of everything that determines the output, the source's files included.

    An interrupted conversion resumes only if the fingerprint is the same.
    """
    facts: list[Any] = [version("mlx"), config.described(), config.verify]
    for job in jobs:
        location = job.source.location
        if job.source.shards:
            remote = job.source.shards.remote
            stamps: list[Any] = [(name, remote[name].digest) for name in sorted(remote)]
        else:
            files = [location.file] if location.file else sorted(location.folder.iterdir())
            stamps = [
                (path.name, path.stat().st_size, path.stat().st_mtime_ns)
                for path in files
                if path.is_file()
            ]
        facts.append([location.name, location.revision, job.plan.fingerprint(), stamps])
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
