"""One model's conversion, decided in full: what is read, what becomes of it, where it goes."""

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
from dflash_mlx.convert.plan.layout import TensorLayout
from dflash_mlx.convert.plan.packed_source import check_packed_weights, dequantized_layout
from dflash_mlx.convert.plan.recipe import QuantizationRecipe, named_recipe
from dflash_mlx.convert.plan.target_layout import target_layout
from dflash_mlx.convert.plan.weights import WeightsPlan, plan_weights
from dflash_mlx.convert.progress import ProgressCallback
from dflash_mlx.convert.sources.side_files import output_config
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.convert.tensors import CHUNK_BYTES, FLOAT_NAMES, Rows, n_bytes
from dflash_mlx.convert.workers import N_WORKERS
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import read_draft_config

_BASE_BYTES = 170_000_000
"""Python, MLX and mlx-lm with nothing loaded, and a folder's headers."""


@dataclass(frozen=True)
class ConversionJob:
    """One source with everything that follows from it. `values` are its weights as numbers.

    `folder` is the place inside the output, empty for the output itself.
    """

    source: ModelSource
    plan: WeightsPlan
    recipe: QuantizationRecipe | None
    config: Mapping[str, Any]
    values: Mapping[str, Rows]
    draft: DraftConfig | None
    folder: str = ""

    @property
    def n_source_bytes(self) -> int:
        """Bytes that writing will read."""
        return sum(n_bytes(output.rows.dtype, output.rows.shape) for output in self.plan.outputs)

    @property
    def peak_bytes(self) -> int:
        """An estimate of the resident memory while writing, verification not included."""
        computed = [
            output.rows.peak_bytes
            for output in self.plan.outputs
            if isinstance(output.rows, ComputedRows)
        ]
        return _BASE_BYTES + N_WORKERS * 5 * CHUNK_BYTES + N_WORKERS * max(computed, default=0)


def plan_job(
    source: ModelSource, config: ConvertConfig, folder: str, watch: ProgressCallback
) -> ConversionJob:
    """Return what converting `source` means under `config`.

    Raises:
        BadRequest: the options do not go with this source.
        BadCheckpoint: tensors are missing, left over or misshapen.
        UnsupportedModel: the family is not known.
    """
    draft = read_draft_config(source.config, source.name) if source.is_draft else None
    layout = _layout(source, draft)
    tied = bool(source.config.get("tie_word_embeddings")) and draft is None
    kept = source.quantization
    if kept and config.dequantize:
        asked = FLOAT_NAMES[config.dtype] if config.dtype else None
        layout, kept = dequantized_layout(layout, kept, source.name, asked), None
    values = layout.tensors if not kept else dequantized_layout(layout, kept, source.name).tensors
    recipe = _recipe(source, config, layout, values, watch)
    if kept and recipe:
        check_packed_weights(layout, kept, recipe, tied, source.name)
    dtype = config.dtype or _own_dtype(source, recipe)
    plan = plan_weights(
        layout,
        recipe,
        FLOAT_NAMES[dtype] if dtype else None,
        tied,
        kept,
        config.keep_undivided,
        config.shard_bytes,
    )
    made = output_config(source.config, plan.quantization, dtype)
    return ConversionJob(source, plan, recipe, made, values, draft, folder)


def _layout(source: ModelSource, draft: DraftConfig | None) -> TensorLayout:
    if draft is None:
        return target_layout(source.config, source.tensors, source.name)
    return draft_layout(draft, source.tensors, draft_module(draft, source.tensors), source.name)


def _recipe(
    source: ModelSource,
    config: ConvertConfig,
    layout: TensorLayout,
    values: Mapping[str, Rows],
    watch: ProgressCallback,
) -> QuantizationRecipe | None:
    """Return the recipe; None where nothing is to be quantized anew."""
    unasked = not config.sets_quantization
    if unasked and (config.dequantize or source.quantization):
        return None
    name = config.recipe
    if unasked and source.is_draft:
        name = "draft"
    if name and name.partition(":")[0] == "auto":
        return auto_recipe(name, source, layout, values, config.base, watch)
    return named_recipe(name, config.base)


def _own_dtype(source: ModelSource, recipe: QuantizationRecipe | None) -> str | None:
    """The type that the source says its weights have, as mlx-lm's converter takes it."""
    inner = source.config.get("text_config") or {}
    for found in (source.config.get("torch_dtype"), source.config.get("dtype"), inner.get("dtype")):
        if found in FLOAT_NAMES:
            return str(found)
    # GGUF names no type; its scales are halves
    return "float16" if source.form == "GGUF" and recipe else None


def fingerprint(jobs: Sequence[ConversionJob], config: ConvertConfig) -> str:
    """Return a hash of everything that the output depends on, the source's files included.

    An interrupted conversion is continued only under the same fingerprint.
    """
    facts: list[Any] = [version("mlx"), config.described(), config.verify]
    for job in jobs:
        place = job.source.located
        files = [place.file] if place.file else sorted(place.folder.iterdir())
        stamps = [
            (path.name, path.stat().st_size, path.stat().st_mtime_ns)
            for path in files
            if path.is_file()
        ]
        facts.append([place.name, place.revision, job.plan.fingerprint(), stamps])
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
