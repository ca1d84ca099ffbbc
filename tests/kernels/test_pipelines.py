"""Every pipeline that a layer can launch was checked and timed before."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.cache import ContextLayer
from dflash_mlx.kernels.attention import KernelDraftAttention, VerifyAttention
from dflash_mlx.kernels.autotuner import MAX_TIMED
from dflash_mlx.kernels.draft2 import KernelConvolution, KernelSelector
from dflash_mlx.kernels.fused_head import FusedHead
from dflash_mlx.kernels.pair_kernels import install_kernels
from dflash_mlx.models.draft.dflash2 import Picking, SelectingDraft, Slots
from dflash_mlx.models.pair import Pair
from tests.metal.fake_chip import FakeChip
from tests.tiny import random_draft, selecting_draft, tiny_target

BLOCK = 20  # the third row tile begins at 17 rows
KEYS = (128, 256)
LENGTHS = (30, 128, 140, 255, 256, 500, 5000)
FLOATS = (mx.float32, mx.float16, mx.bfloat16)


def make_pair(make_draft, weights=mx.float32, norms=mx.float32, bits=None):
    """Return a tiny pair with these types of matrices and norms."""
    target = tiny_target("qwen3", head_dim=64, num_hidden_layers=1)
    draft = make_draft(
        target,
        head_dim=64,
        block_size=BLOCK,
        sliding_window=None,
        layer_types=("full_attention",) * 2,
    )
    for model in (target.model, draft.model):
        model.set_dtype(weights)
        if bits:
            nn.quantize(model, 32, bits, class_predicate=_divides)
        for _, layer in model.named_modules():
            if isinstance(layer, nn.RMSNorm):
                layer.weight = layer.weight.astype(norms)
    return Pair(target, draft)


def _divides(path, layer):
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


class Cache:
    """A KV cache of one sequence that already holds `offset` rows."""

    def __init__(self, offset):
        self.offset = offset

    def update_and_fetch(self, keys, values):
        room = [(0, 0), (0, 0), (self.offset, 0), (0, 0)]
        return mx.pad(keys, room), mx.pad(values, room)


def launch_all(pair):
    """Call every kernel layer with all row counts, lengths and float types it could get."""
    for model in (pair.target.model, pair.draft.model):
        for _, layer in model.named_modules():
            if hasattr(layer, "_chosen") or hasattr(layer, "_kernel"):
                for dtype in FLOATS:
                    for rows in range(1, BLOCK + 2):
                        _launch(layer, rows, dtype)
    draft = pair.draft
    own = draft.fused_candidates if isinstance(draft, SelectingDraft) else draft.fused_argmax
    for head in (pair.target.fused_argmax, own):
        if isinstance(head, FusedHead):
            n_inputs = pair.target.model.args.hidden_size
            for dtype in FLOATS:
                for rows in range(1, BLOCK + 2):
                    head(mx.zeros((1, rows, n_inputs), dtype))


def _launch(layer, rows, dtype):
    if isinstance(layer, VerifyAttention):
        x = mx.zeros((1, rows, _inputs(layer.q_proj)), dtype)
        for length in LENGTHS:
            layer(x, "causal", Cache(length - rows))
    elif isinstance(layer, KernelDraftAttention):
        block = [mx.zeros((1, 2, rows, 64), dtype) for _ in range(2)]
        for length in LENGTHS:
            context = ContextLayer(None)
            context.append(*(mx.zeros((1, 2, length, 64), dtype) for _ in range(2)), 0)
            layer.attend(mx.zeros((1, 4, rows, 64), dtype), *block, length, context)
    elif isinstance(layer, KernelConvolution):
        shape = (1, rows, layer.base_kernel.shape[1], layer.n_groups)
        x = mx.zeros((1, rows, layer.base_kernel.shape[-1]), dtype)
        layer.convolve(x, mx.zeros(shape, dtype), layer.base_kernel[0])
    elif isinstance(layer, KernelSelector):
        rank = layer.predecessor_codebook.weight.shape[1]
        ids = mx.zeros((rows, layer.top_k), mx.int32)
        slots = Slots(ids, mx.zeros(ids.shape, dtype), mx.zeros((rows, rank), dtype))
        layer.forward(mx.array(0), slots, Picking(0.0, 0, 0))
    elif hasattr(layer, "as_linear"):
        layer.as_linear(mx.zeros((1, rows, _inputs(layer)), dtype))
    else:
        layer(mx.zeros((1, rows, _inputs(layer)), dtype))


def _inputs(linear):
    return 32 * linear.scales.shape[1] if "scales" in linear else linear.weight.shape[1]


def proved(kernels, chip):
    """Return the pipelines of the candidates of each task that were both checked and timed."""
    found = {}
    for task in kernels._pending:
        for candidate in task.case.candidates[:MAX_TIMED]:
            chip.pipelines.clear()
            assert task.case.check(candidate) is None
            checked = set(chip.pipelines)
            for work in task.case.timed:
                chip.pipelines.clear()
                mx.eval(work.ours(candidate, 1))
                assert chip.pipelines == checked
            found[id(task), candidate] = checked
    return found


@pytest.mark.parametrize(
    ("make_draft", "weights", "norms", "bits"),
    [
        (random_draft, mx.float32, mx.float32, 4),
        (random_draft, mx.float16, mx.float32, None),  # as GGUF files store them
        (random_draft, mx.bfloat16, mx.bfloat16, 8),
        (random_draft, mx.float32, mx.bfloat16, None),
        (selecting_draft, mx.bfloat16, mx.float32, None),
    ],
)
def test_only_checked_and_timed_pipelines_are_launched(tmp_path, make_draft, weights, norms, bits):
    """Other splits, row types and row tiles than the checked ones ran first within an answer."""
    pair, chip = make_pair(make_draft, weights, norms, bits), FakeChip()
    kernels = install_kernels(pair, "auto", chip, chip.autotuner(tmp_path), KEYS)
    pipelines = proved(kernels, chip)
    tasks = list(kernels._pending)
    launched = set()
    for number in range(MAX_TIMED):
        allowed = set()
        for task in tasks:
            candidates = task.case.candidates[:MAX_TIMED]
            candidate = candidates[number % len(candidates)]
            task.select(candidate)
            allowed |= pipelines[id(task), candidate]
        chip.pipelines.clear()
        launch_all(pair)
        assert chip.pipelines <= allowed
        launched |= chip.pipelines
    names = {name for name, _ in launched}
    assert names >= {"verify_attention", "block_attention", "attention_merge"}
    assert names & {"quantized_verify", "dense_verify"}
    assert ("candidate_path" in names) == (make_draft is selecting_draft)


def test_a_kernel_result_has_the_type_of_stock_mlx(tmp_path):
    """Bfloat16 rows and float32 weights give float32 in stock MLX; the kernel gave bfloat16."""
    for weights, norms in ((mx.float32, mx.bfloat16), (mx.float16, mx.float32)):
        pair, chip = make_pair(random_draft, weights, norms), FakeChip()
        layer = pair.target.model.layers[0].mlp.up_proj
        stock = {dtype: layer(mx.zeros((1, 4, _inputs(layer)), dtype)).dtype for dtype in FLOATS}
        kernels = install_kernels(pair, "auto", chip, chip.autotuner(tmp_path), KEYS)
        for task in kernels._pending:
            task.select(task.case.candidates[0])
        layer = pair.target.model.layers[0].mlp.up_proj
        for dtype in FLOATS:
            assert layer(mx.zeros((1, 4, _inputs(layer)), dtype)).dtype == stock[dtype]
