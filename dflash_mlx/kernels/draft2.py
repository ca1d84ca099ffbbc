"""A DFlash 2 draft's convolutions and its walk in one launch each, where the kernels were chosen.

In MLX operations a convolution takes about four launches a tap, and a draft layer has four of
them; the walk takes about six launches a slot that wait for each other.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.kernels.choices import Choices
from dflash_mlx.kernels.rewrap import put, rewrap_layer
from dflash_mlx.kernels.tuning_tasks import ConvolutionGroup, WalkGroup
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_walk import (
    MAX_CANDIDATES,
    CandidateRows,
    Codebooks,
    candidate_walk,
)
from dflash_mlx.metal.grouped_conv import launch_conv
from dflash_mlx.metal.small_cases import OneGeometry
from dflash_mlx.models.draft.dflash2 import (
    BlockConvolution,
    CandidateSelector,
    Path,
    Pick,
    Picking,
    Slots,
)


class _Chosen:
    """The choices of a layer; kept out of the module's parameters."""

    def __init__(self, choices: Choices[OneGeometry], device: Device) -> None:
        self.choices = choices
        self.device = device


class KernelConvolution(BlockConvolution):
    """Two convolutions within a block, by kernel for blocks of rows where it was chosen."""

    _chosen: _Chosen

    def convolve(self, rows: mx.array, kernels: mx.array, base: mx.array) -> mx.array:
        """Return rows [N, B, D] convolved with `base` [T, D] and `kernels` [N, B, T, G]."""
        if rows.shape[0] != 1 or self._chosen.choices.at(rows.shape[1]) is None:
            return super().convolve(rows, kernels, base)
        return launch_conv(rows[0], base, kernels[0], device=self._chosen.device)[None]


class KernelSelector(CandidateSelector):
    """A selector whose walk is one launch, for blocks of rows where it was chosen."""

    _chosen: _Chosen

    def walk(self, before: mx.array, slots: Slots, pick: Pick) -> Path:
        """Return the path that `pick` takes behind the token `before`, a scalar."""
        n_slots, n_candidates = slots.ids.shape
        chosen = self._chosen
        # rows of the block: the slots and the anchor
        if chosen.choices.at(n_slots + 1) is None or not isinstance(pick, Picking):
            return super().forward(before, slots, pick)
        walked = candidate_walk(
            before.astype(mx.int32),
            CandidateRows(
                slots.ids.astype(mx.int32), slots.unary.astype(mx.float32), slots.context
            ),
            _codebooks(self),
            pick.temperature,
            pick.noise(n_slots, n_candidates),
            device=chosen.device,
        )
        # log-probabilities at the temperature are scores over it, up to what softmax ignores
        scores = walked.log_probs * (pick.temperature or 1.0)
        return Path(walked.tokens, slots.ids, scores)


def exchange_selector(model: nn.Module, device: Device) -> tuple[WalkGroup, ...]:
    """Replace the selector of `model` by ours if the kernel can take it; its group."""
    groups, exchanged = [], []
    for path, layer in model.named_modules():
        if type(layer) is not CandidateSelector or not _fits(layer):
            continue
        group = WalkGroup(_codebooks(layer), layer.top_k, Choices())
        made: Any = rewrap_layer(layer, KernelSelector)
        made._chosen = _Chosen(group.choices, device)
        groups.append(group)
        exchanged.append((path, made))
    put(model, exchanged)
    return tuple(groups)


def _fits(layer: CandidateSelector) -> bool:
    """Whether codebooks are dense, as the kernel reads them."""
    books = (layer.predecessor_codebook, layer.successor_codebook)
    return all(type(book) is nn.Embedding for book in books) and layer.top_k <= MAX_CANDIDATES


def _codebooks(layer: CandidateSelector) -> Codebooks:
    return Codebooks(layer.predecessor_codebook.weight, layer.successor_codebook.weight)


def exchange_convolutions(model: nn.Module, device: Device) -> tuple[ConvolutionGroup, ...]:
    """Replace the convolutions of `model` by ours; the groups of equal shape that they form."""
    groups: dict[str, ConvolutionGroup] = {}
    exchanged: list[tuple[str, nn.Module]] = []
    for path, layer in model.named_modules():
        if type(layer) is not BlockConvolution:
            continue
        group = groups.setdefault(f"{layer.base_kernel.shape} {layer.n_groups}", _group(layer))
        made: Any = rewrap_layer(layer, KernelConvolution)
        made._chosen = _Chosen(group.choices, device)
        exchanged.append((path, made))
    put(model, exchanged)
    return tuple(groups.values())


def _group(layer: BlockConvolution) -> ConvolutionGroup:
    """The group that a convolution would form alone."""

    def stock(rows: mx.array, base: mx.array, change: mx.array) -> mx.array:
        return layer.convolve(rows[None], change[None], base)[0]

    return ConvolutionGroup(layer.base_kernel[0], layer.n_groups, stock, Choices())
