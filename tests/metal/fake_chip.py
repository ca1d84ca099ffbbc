"""A simulated chip: references compute the launches, and a fake clock gives the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.config import KernelPolicy
from dflash_mlx.kernels.autotuner import Autotuner
from dflash_mlx.kernels.result_store import ResultStore, TuningPlatform
from dflash_mlx.metal.attention_merge import attention_merge_reference
from dflash_mlx.metal.block_attention import BlockKeys, BlockMask, block_attention_reference
from dflash_mlx.metal.build import Launch
from dflash_mlx.metal.candidate_path import (
    CandidateRows,
    Codebooks,
    candidate_path_reference,
)
from dflash_mlx.metal.dense_verify import dense_verify_reference
from dflash_mlx.metal.grouped_conv import grouped_conv_reference
from dflash_mlx.metal.head_argmax import Head, head_argmax_reference
from dflash_mlx.metal.head_merge import Strips, head_merge_reference
from dflash_mlx.metal.quantized_verify import QuantizedWeight, quantized_verify_reference
from dflash_mlx.metal.verify_attention import verify_attention_reference

PLATFORM = TuningPlatform("Apple M4 Max", "26.1", "0.32.4")


Pipeline = tuple[str, tuple[tuple[str, Any], ...]]


def pipeline(launch: Launch) -> Pipeline:
    """Return what identifies the compiled pipeline of a launch."""
    return launch.kernel.name, launch.template


def same(y: mx.array) -> mx.array:
    """Return a result unchanged."""
    return y


@dataclass
class FakeChip:
    """A device with a clock: a step takes `ours_s` with a kernel and `stock_s` with stock MLX.

    `spoil` changes the first output of every launch. `pipelines` collects what Metal would
    compile: the name and template of every launched kernel.
    """

    ours_s: float = 0.0005
    stock_s: float = 0.001
    spoil: Callable[[mx.array], mx.array] = same
    launched: list[str] = field(default_factory=list)
    pipelines: set[Pipeline] = field(default_factory=set)
    now: float = 0.0
    busy: bool = False

    def run(self, launch: Launch) -> Sequence[mx.array]:
        """Return the outputs of a launch."""
        self.launched.append(launch.kernel.name)
        self.pipelines.add(pipeline(launch))
        self.busy = True
        computed = _COMPUTED[launch.kernel.name](launch, dict(launch.template))
        first, *others = [computed] if isinstance(computed, mx.array) else computed
        return [self.spoil(first), *others]

    def evaluate(self, _chain: mx.array) -> None:
        """Advance the clock by the time of a chain; its values are not needed."""
        self.now += 4 * (self.ours_s if self.busy else self.stock_s)
        self.busy = False

    def autotuner(
        self, folder: Path, policy: KernelPolicy = "auto", platform: TuningPlatform = PLATFORM
    ) -> Autotuner:
        """Return an autotuner that measures on this chip."""
        return Autotuner(ResultStore(folder, platform), policy, lambda: self.now, self.evaluate)


def _quantized(launch: Launch, template: dict[str, Any]) -> mx.array:
    x, *weight = launch.inputs
    packed = QuantizedWeight(*weight, template["GROUP"], template["BITS"])
    return quantized_verify_reference(x, packed)


def _verify(launch: Launch, template: dict[str, Any]) -> mx.array:
    q, k, v, scale = launch.inputs
    window = template["WINDOW"] or None
    return _split(launch, verify_attention_reference(q, k, v, float(scale.item()), window))


def _block(launch: Launch, template: dict[str, Any]) -> mx.array:
    q, *keys, scale = launch.inputs
    mask = BlockMask(template["WINDOW"] or None, template["CAUSAL"])
    out = block_attention_reference(q, BlockKeys(*keys), float(scale.item()), mask)
    return _split(launch, out)


def _split(launch: Launch, out: mx.array) -> mx.array:
    """Return finished rows, or parts for the merge: all in the first split, the others empty."""
    shape = launch.output_shapes[0]
    if launch.output_dtypes[0] == out.dtype and shape == out.shape:
        return out
    parts = mx.zeros(shape)
    parts[..., -2] = -1e30
    parts[0, ..., :-2] = out[0].astype(mx.float32)
    parts[0, ..., -2:] = mx.array([0.0, 1.0])
    return parts


def _head(launch: Launch, template: dict[str, Any]) -> list[mx.array]:
    """Return the lists of all strips: the first holds the result, the others are empty."""
    x, w, scales, biases, factors = launch.inputs
    weight: mx.array | QuantizedWeight = w
    if template["QUANTIZED"]:
        weight = QuantizedWeight(w, scales, biases, template["GROUP"], template["BITS"])
    scale, cap = (float(factor) for factor in factors.tolist())
    head = Head(weight, scale, cap if template["CAPPED"] else None)
    best = head_argmax_reference(x, head, template["COUNT"])
    masses = mx.stack([best.log_sum_exp, mx.ones(x.shape[0])], axis=-1)
    empty = (mx.full(shape, -3e38) for shape in launch.output_shapes)
    values, ids, sums = (mx.array(part) for part in empty)
    values[0], ids, sums[0] = best.logits, mx.full(ids.shape, 2**31 - 1, mx.int32), masses
    ids[0], sums[1:, :, 1] = best.tokens, 0.0
    return [values, ids, sums]


def _path(launch: Launch, template: dict[str, Any]) -> list[mx.array]:
    anchor, candidates, unary, projected, before, after, noise, inverse = launch.inputs
    path = candidate_path_reference(
        anchor,
        CandidateRows(candidates, unary, projected),
        Codebooks(before, after),
        1 / float(inverse.item()),
        noise,
    )
    return [path.tokens, path.log_probs]


def _merge(launch: Launch, template: dict[str, Any]) -> list[mx.array]:
    best = head_merge_reference(Strips(*launch.inputs))
    return [best.logits, best.tokens, best.log_sum_exp]


Computed = mx.array | list[mx.array]
_COMPUTED: dict[str, Callable[[Launch, dict[str, Any]], Computed]] = {
    "head_argmax": _head,
    "head_merge": _merge,
    "quantized_verify": _quantized,
    "dense_verify": lambda launch, _: dense_verify_reference(*launch.inputs),
    "attention_merge": lambda launch, template: attention_merge_reference(
        launch.inputs[0], template["O"]
    ),
    "verify_attention": _verify,
    "block_attention": _block,
    "candidate_path": _path,
    "grouped_conv": lambda launch, _: grouped_conv_reference(*launch.inputs),
}
