"""The `auto` recipe: a given average width, spent where the output of a weight suffers most.

Every layer of the source is run on the bundled text, and for each of its weights the error of
its product at every width is measured on the rows that really enter it. Then the weight with the
largest error gets the next width, until the average is reached. Experts are measured as one
weight on the rows that enter any of them.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.convert.options import Quantization
from dflash_mlx.convert.plan.layer_runner import LayerRunner
from dflash_mlx.convert.plan.layout import TensorLayout
from dflash_mlx.convert.plan.recipe import QuantizationRecipe
from dflash_mlx.convert.plan.streamed import put
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.sample_text import TEXT
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.convert.sources.tokens import source_tokens
from dflash_mlx.convert.tensors import Rows, chunks, numbers, to_mlx
from dflash_mlx.errors import BadRequest, UnsupportedModel

CANDIDATE_BITS = (2, 3, 4, 5, 6, 8)
_MOST_ROWS = 128
"""Rows of activations that a weight is measured on."""


@dataclass(frozen=True)
class QuantizationErrors:
    """One weight: its size, and the relative error of its output at each of `WIDTHS`."""

    path: str
    n_weights: int
    errors: tuple[float, ...]


def auto_recipe(
    name: str,
    source: ModelSource,
    layout: TensorLayout,
    values: Mapping[str, Rows],
    base: Quantization,
    watch: ProgressCallback,
) -> QuantizationRecipe:
    """Return the recipe that `auto:AVERAGE` means for a target.

    Raises:
        BadRequest: no average, or one that no mixture of widths has.
        UnsupportedModel: the source is a draft, has no tokenizer, or is of another family.
    """
    average = _average(name, base.group_size)
    if source.is_draft:
        raise UnsupportedModel(
            f"recipe auto runs a model on text, and {source.name} is a draft, which runs on its "
            "target's features only; use --recipe draft"
        )
    tokens = source_tokens(source, TEXT)
    if tokens is None:
        raise UnsupportedModel(
            f"recipe auto runs {source.name} on text and it brings no tokenizer; add tokenizer.json"
        )
    walk = LayerRunner(source.config, source.name)
    free = {
        path
        for path, asked in layout.quantizable.items()
        if asked is True and f"{path}.weight" in values
    }
    found = list(_measure(walk, values, tokens, free, base.group_size, watch))
    widths = allocate_bits(found, average, base.group_size)
    choices = {path: replace(base, bits=bits) for path, bits in sorted(widths.items())}
    return QuantizationRecipe(name, base, {}, choices)


def _average(name: str, group_size: int) -> float:
    _, _, text = name.partition(":")
    overhead = _overhead(group_size)
    lowest, highest = CANDIDATE_BITS[0] + overhead, CANDIDATE_BITS[-1] + overhead
    try:
        average = float(text)
    except ValueError:
        average = math.nan
    if not lowest <= average <= highest:
        raise BadRequest(
            f"recipe {name!r} needs an average of bits per weight from {lowest:g} to {highest:g}, "
            "scales included, as in auto:4.5"
        )
    return average


def _overhead(group_size: int) -> float:
    """Bits per weight of a group's scale and bias, two bytes each."""
    return 32 / group_size


def allocate_bits(
    found: list[QuantizationErrors], average: float, group_size: int
) -> dict[str, int]:
    """Return the width of every weight: the worst gets more until `average` is used up."""
    budget = (average - _overhead(group_size)) * sum(weight.n_weights for weight in found)
    level = {weight.path: 0 for weight in found}
    used = float(sum(weight.n_weights * CANDIDATE_BITS[0] for weight in found))
    worst = [(-weight.errors[0], weight.path, weight) for weight in found]
    heapq.heapify(worst)
    while worst:
        _, path, weight = heapq.heappop(worst)
        step = level[path] + 1
        cost = weight.n_weights * (CANDIDATE_BITS[step] - CANDIDATE_BITS[step - 1])
        if used + cost > budget:
            continue
        used += cost
        level[path] = step
        if step + 1 < len(CANDIDATE_BITS):
            heapq.heappush(worst, (-weight.errors[step], path, weight))
    return {path: CANDIDATE_BITS[step] for path, step in level.items()}


def _measure(
    walk: LayerRunner,
    values: Mapping[str, Rows],
    tokens: list[int],
    free: set[str],
    group_size: int,
    watch: ProgressCallback,
) -> Iterator[QuantizationErrors]:
    hidden = walk.embed(values, tokens)
    for index in range(walk.n_layers):
        modules = walk.layer(index).named_modules()
        inner = {path for path, module in modules if hasattr(module, "to_quantized")}
        layer = walk.fill(index, values)
        seen = _watched(layer, inner)
        hidden = walk.run(index, hidden)
        rows = {path: module.rows() for path, module in seen.items()}
        put(layer, {path: module.inner for path, module in seen.items()})
        walk.empty(index)
        for path in sorted(inner):
            whole, entering = f"model.layers.{index}.{path}", rows[path]
            if whole in free and entering is not None:
                yield output_errors(whole, values[f"{whole}.weight"], entering, group_size)
        mx.clear_cache()
        watch(ConversionProgress("calibrate", index + 1, walk.n_layers, "layers"))
    normed = walk.norm(values, hidden)[:_MOST_ROWS]
    for path in ("lm_head", "model.embed_tokens"):
        if path in free:
            yield output_errors(path, values[f"{path}.weight"], normed, group_size)


def _watched(layer: nn.Module, paths: set[str]) -> dict[str, "_Seen"]:
    modules = dict(layer.named_modules())
    seen = {path: _Seen(modules[path]) for path in paths}
    put(layer, dict(seen))
    return seen


class _Seen(nn.Module):
    """A module that keeps what enters the module inside it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._entered: list[mx.array] = []

    def __call__(self, rows: mx.array, *others: Any, **options: Any) -> mx.array:
        self._entered.append(rows)
        output: mx.array = self.inner(rows, *others, **options)
        return output

    def rows(self) -> mx.array | None:
        """Return some of the rows that entered, [r, width], spread over the text."""
        if not self._entered:
            return None
        rows = self._entered[0].reshape(-1, self._entered[0].shape[-1]).astype(mx.float32)
        kept = rows[:: max(1, len(rows) // _MOST_ROWS)][:_MOST_ROWS]
        mx.eval(kept)
        return kept


def output_errors(
    path: str, weight: Rows, entering: mx.array, group_size: int
) -> QuantizationErrors:
    """Return the error of a weight's product with `entering` [r, width] at every width."""
    size = 0.0
    off = [0.0] * len(CANDIDATE_BITS)
    usable = weight.shape[-1] % group_size == 0
    for start, stop in chunks(weight) if usable else ():
        rows = to_mlx(weight.read(start, stop), weight.dtype)
        exact = rows.astype(mx.float32)
        errors = []
        for bits in CANDIDATE_BITS:
            packed = mx.quantize(rows, group_size=group_size, bits=bits)
            rounded = mx.dequantize(*packed, group_size=group_size, bits=bits)
            errors.append(mx.square(entering @ (rounded.astype(mx.float32) - exact).T).sum())
        *found, length = numbers([*errors, mx.square(entering @ exact.T).sum()])
        off = [before + more for before, more in zip(off, found, strict=True)]
        size += length
    n_weights = math.prod(weight.shape)
    return QuantizationErrors(
        path, n_weights, tuple(math.sqrt(e / size) if size else 0.0 for e in off)
    )
