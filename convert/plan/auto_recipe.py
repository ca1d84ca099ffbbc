"""The recipe `auto:AVERAGE`: more bits for the weights whose outputs have the largest error.

It must not know how weights are written.
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
from dflash_mlx.convert.plan.streamed import replace_modules
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.sample_text import TEXT, source_tokens
from dflash_mlx.convert.sources.source import ModelSource
from dflash_mlx.convert.tensors import Rows, chunks, numbers, to_mlx
from dflash_mlx.errors import BadRequest, UnsupportedModel
from dflash_mlx.system.foreign import quoted, reading

CANDIDATE_BITS = (2, 3, 4, 5, 6, 8)
"""All bits of MLX's affine mode."""
_MAX_INPUT_ROWS = 128
"""Rows of activations per weight: half of the sample text's tokens, evenly spaced."""


@dataclass(frozen=True)
class QuantizationErrors:
    """A weight, its number of elements, and its relative output error at each candidate."""

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
    """Return the recipe for `name`, which has the form "auto:AVERAGE", for a target.

    The source runs layer by layer on the sample text. For each weight, the error of its product
    is measured at every candidate on the activations that enter it. The weight with the largest
    error then gets the next candidate until the average is reached. The experts of a layer are
    one weight, measured on the activations that enter any of them.

    Raises:
        BadRequest: the average is missing, or no mixture of candidates has it.
        UnsupportedModel: the source is a draft, has no tokenizer, or cannot run layer by layer.
    """
    average = _average(name, base.group_size)
    if source.is_draft:
        raise UnsupportedModel(
            f"recipe auto runs the model on text, and {source.name} is a draft, which needs its "
            "target's hidden states; use --recipe draft"
        )
    tokens = source_tokens(source, TEXT)
    if tokens is None:
        raise UnsupportedModel(
            f"recipe auto runs {source.name} on text, and the source has no tokenizer; add "
            "tokenizer.json"
        )
    runner = LayerRunner(source.config, source.name)
    free = {
        path
        for path, requested in layout.quantizable.items()
        if requested is True and f"{path}.weight" in values
    }
    with reading(source.name, "the model that config.json describes", "check config.json"):
        found = list(_measure(runner, values, tokens, free, base.group_size, watch))
    bits_by_path = allocate_bits(found, average, base.group_size)
    choices = {path: replace(base, bits=bits) for path, bits in sorted(bits_by_path.items())}
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
            f"recipe is {quoted(name)}; auto needs an average number of bits per weight from "
            f"{lowest:g} to {highest:g}, scales included, for example auto:4.5"
        )
    return average


def _overhead(group_size: int) -> float:
    """Return the bits per weight of scale and bias, two bytes each per group."""
    return 32 / group_size


def allocate_bits(
    found: list[QuantizationErrors], average: float, group_size: int
) -> dict[str, int]:
    """Return the bits of every weight; the largest error gets more until `average` is used up."""
    budget = (average - _overhead(group_size)) * sum(weight.n_weights for weight in found)
    level = {weight.path: 0 for weight in found}
    used = float(sum(weight.n_weights * CANDIDATE_BITS[0] for weight in found))
    largest = [(-weight.errors[0], weight.path, weight) for weight in found]
    heapq.heapify(largest)
    while largest:
        _, path, weight = heapq.heappop(largest)
        step = level[path] + 1
        cost = weight.n_weights * (CANDIDATE_BITS[step] - CANDIDATE_BITS[step - 1])
        if used + cost > budget:
            continue
        used += cost
        level[path] = step
        if step + 1 < len(CANDIDATE_BITS):
            heapq.heappush(largest, (-weight.errors[step], path, weight))
    return {path: CANDIDATE_BITS[step] for path, step in level.items()}


def _measure(
    runner: LayerRunner,
    values: Mapping[str, Rows],
    tokens: list[int],
    free: set[str],
    group_size: int,
    watch: ProgressCallback,
) -> Iterator[QuantizationErrors]:
    hidden = runner.embed(values, tokens)
    for index in range(runner.n_layers):
        modules = runner.layer(index).named_modules()
        inner = {path for path, module in modules if hasattr(module, "to_quantized")}
        layer = runner.fill(index, values)
        recorders = _record_inputs(layer, inner)
        hidden = runner.run(index, hidden)
        inputs = {path: recorder.recorded() for path, recorder in recorders.items()}
        replace_modules(layer, {path: recorder.inner for path, recorder in recorders.items()})
        runner.empty(index)
        for path in sorted(inner):
            whole, entering = f"model.layers.{index}.{path}", inputs[path]
            if whole in free and entering is not None:
                yield output_errors(whole, values[f"{whole}.weight"], entering, group_size)
        mx.clear_cache()
        watch(ConversionProgress("calibrate", index + 1, runner.n_layers, "layers"))
    normed = runner.norm(values, hidden)[:_MAX_INPUT_ROWS]
    for path in ("lm_head", "model.embed_tokens"):
        if path in free:
            yield output_errors(path, values[f"{path}.weight"], normed, group_size)


def _record_inputs(layer: nn.Module, paths: set[str]) -> dict[str, "_InputRecorder"]:
    modules = dict(layer.named_modules())
    recorders = {path: _InputRecorder(modules[path]) for path in paths}
    replace_modules(layer, dict(recorders))
    return recorders


class _InputRecorder(nn.Module):
    """Wraps a module and stores its inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._inputs: list[mx.array] = []

    def __call__(self, rows: mx.array, *others: Any, **options: Any) -> mx.array:
        self._inputs.append(rows)
        output: mx.array = self.inner(rows, *others, **options)
        return output

    def recorded(self) -> mx.array | None:
        """Return at most `_MAX_INPUT_ROWS` inputs [r, width], evenly spaced over the text."""
        if not self._inputs:
            return None
        rows = self._inputs[0].reshape(-1, self._inputs[0].shape[-1]).astype(mx.float32)
        selected = rows[:: max(1, len(rows) // _MAX_INPUT_ROWS)][:_MAX_INPUT_ROWS]
        mx.eval(selected)
        return selected


def output_errors(
    path: str, weight: Rows, entering: mx.array, group_size: int
) -> QuantizationErrors:
    """Return the error of a weight's product with `entering` [r, width] at every candidate."""
    size = 0.0
    sums = [0.0] * len(CANDIDATE_BITS)
    divisible = weight.shape[-1] % group_size == 0
    for start, stop in chunks(weight) if divisible else ():
        rows = to_mlx(weight.read(start, stop), weight.dtype)
        exact = rows.astype(mx.float32)
        errors = []
        for bits in CANDIDATE_BITS:
            packed = mx.quantize(rows, group_size=group_size, bits=bits)
            rounded = mx.dequantize(*packed, group_size=group_size, bits=bits)
            errors.append(mx.square(entering @ (rounded.astype(mx.float32) - exact).T).sum())
        *found, length = numbers([*errors, mx.square(entering @ exact.T).sum()])
        sums = [before + more for before, more in zip(sums, found, strict=True)]
        size += length
    relative = tuple(math.sqrt(total / size) if size else 0.0 for total in sums)
    return QuantizationErrors(path, math.prod(weight.shape), relative)
