"""DFlash 2 draft layers that launch one kernel per convolution and one for path selection.

With MLX operations a convolution takes about four launches per kernel position, and path
selection about six dependent launches per slot.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dflash_mlx.kernels.choices import Choices
from dflash_mlx.kernels.layers import norm_dtype, row_dtype
from dflash_mlx.kernels.rewrap import replace_layers, rewrap_layer
from dflash_mlx.kernels.tuning_tasks import ConvolutionGroup, SelectorGroup
from dflash_mlx.metal.build import Device
from dflash_mlx.metal.candidate_path import (
    MAX_CANDIDATES,
    CandidateRows,
    Codebooks,
    candidate_path,
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
    """The choices and the device of a layer; not one of the module's parameters."""

    def __init__(self, choices: Choices[OneGeometry], dtype: mx.Dtype, device: Device) -> None:
        self._choices = choices
        self._dtype = dtype
        self.device = device

    def use_kernel(self, n_rows: int, *arrays: mx.array) -> bool:
        """Whether the kernel was selected for blocks of `n_rows` rows of the type of `arrays`."""
        if self._choices.at(n_rows) is None:
            return False
        return all(array.dtype == self._dtype for array in arrays)


class KernelConvolution(BlockConvolution):
    """The two convolutions of a sublayer with the grouped_conv kernel."""

    _chosen: _Chosen

    def convolve(self, rows: mx.array, kernels: mx.array, base: mx.array) -> mx.array:
        """Return rows [N, B, D] convolved with `base` [T, D] and `kernels` [N, B, T, G]."""
        if rows.shape[0] != 1 or not self._chosen.use_kernel(rows.shape[1], rows, kernels):
            return super().convolve(rows, kernels, base)
        return launch_conv(rows[0], base, kernels[0], device=self._chosen.device)[None]


class KernelSelector(CandidateSelector):
    """A candidate selector with the candidate_path kernel."""

    _chosen: _Chosen

    def forward(self, before: mx.array, slots: Slots, pick: Pick) -> Path:
        """Return the path that `pick` selects after the token `before`, a scalar array."""
        n_slots, n_candidates = slots.ids.shape
        chosen = self._chosen
        # block size: the slots and the anchor
        selected = chosen.use_kernel(n_slots + 1, slots.context)
        if not selected or not isinstance(pick, Picking):
            return super().forward(before, slots, pick)
        path = candidate_path(
            before.astype(mx.int32),
            CandidateRows(
                slots.ids.astype(mx.int32), slots.unary.astype(mx.float32), slots.context
            ),
            _codebooks(self),
            pick.temperature,
            pick.noise(n_slots, n_candidates),
            device=chosen.device,
        )
        # log-probabilities are scores divided by the temperature, up to a constant per slot
        scores = path.log_probs * (pick.temperature or 1.0)
        return Path(path.tokens, slots.ids, scores)


def replace_selector(model: nn.Module, device: Device) -> tuple[SelectorGroup, ...]:
    """Replace the selector of `model` by a kernel layer where supported; return its group."""
    norms = norm_dtype(model)
    groups, replaced = [], []
    for path, layer in model.named_modules():
        if type(layer) is not CandidateSelector or not _fits(layer):
            continue
        books = _codebooks(layer)
        dtype = row_dtype(books.before.dtype, norms)
        group = SelectorGroup(books, layer.top_k, dtype, Choices())
        made: Any = rewrap_layer(layer, KernelSelector)
        made._chosen = _Chosen(group.choices, group.dtype, device)
        groups.append(group)
        replaced.append((path, made))
    replace_layers(model, replaced)
    return tuple(groups)


def _fits(layer: CandidateSelector) -> bool:
    """Whether the kernel supports this selector: dense codebooks, at most 32 candidates."""
    books = (layer.predecessor_codebook, layer.successor_codebook)
    return all(type(book) is nn.Embedding for book in books) and layer.top_k <= MAX_CANDIDATES


def _codebooks(layer: CandidateSelector) -> Codebooks:
    return Codebooks(layer.predecessor_codebook.weight, layer.successor_codebook.weight)


def replace_convolutions(model: nn.Module, device: Device) -> tuple[ConvolutionGroup, ...]:
    """Replace the convolutions of `model` by kernel layers; return their groups of equal shape."""
    norms = norm_dtype(model)
    groups: dict[str, ConvolutionGroup] = {}
    replaced: list[tuple[str, nn.Module]] = []
    for path, layer in model.named_modules():
        if type(layer) is not BlockConvolution:
            continue
        group = groups.setdefault(
            f"{layer.base_kernel.shape} {layer.n_groups}", _group(layer, norms)
        )
        made: Any = rewrap_layer(layer, KernelConvolution)
        made._chosen = _Chosen(group.choices, group.dtype, device)
        replaced.append((path, made))
    replace_layers(model, replaced)
    return tuple(groups.values())


def _group(layer: BlockConvolution, norms: mx.Dtype | None) -> ConvolutionGroup:
    """Return the group of one convolution."""

    def stock(rows: mx.array, base: mx.array, change: mx.array) -> mx.array:
        return layer.convolve(rows[None], change[None], base)[0]

    dtype = row_dtype(layer.base_kernel.dtype, norms)
    return ConvolutionGroup(layer.base_kernel[0], layer.n_groups, dtype, stock, Choices())
