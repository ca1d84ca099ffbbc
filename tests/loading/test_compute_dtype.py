"""The compute dtype: `stored` gives the text of mlx-lm in 16 bits, `auto` widens on a CPU."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.loading.compute import Compute, compute_here, settle_weights
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.decoder import DecoderTarget
from tests.tiny import PROMPT, ScriptedDraft, answer, plain, tiny_target
from tests.tiny_configs import CONFIGS
from tests.train.tiny_folder import tiny_folder

EXPERTS = ("moe", "gpt_oss", "qwen3_next", "deepseek", "kimi", "glm", "longcat", "minimax")
FAMILIES = [
    name
    for name in CONFIGS
    if not any(part in name for part in EXPERTS) and name not in ("laguna", "gemma4")
]
"""Families without routed experts, which MLX's CPU backend computes in float32 only."""

DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}
SCRIPTS = {"right": [10**6], "wrong": [0], "mixed": [0, 3, 7, 1, 0, 5, 2, 6, 4] * 8}


def stored_in(family: str, dtype: mx.Dtype) -> DecoderTarget:
    target = tiny_target(family)
    target.model.set_dtype(dtype)
    return target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_equals_mlx_lms_in_the_stored_dtype(family: str, dtype: str) -> None:
    """In bfloat16, the argmax of the logits was not the argmax of mlx-lm's log-probabilities."""
    target = stored_in(family, DTYPES[dtype])
    expected = plain(target.model, PROMPT, 40)
    assert answer(Pair(target), 40) == expected
    for script in SCRIPTS.values():
        draft = ScriptedDraft([*PROMPT, *expected, *PROMPT], script)
        assert answer(Pair(target, draft), 40) == expected


def bfloat16_folder(folder: Path, family: str = "qwen3") -> Path:
    """Return a model folder with weights in bfloat16."""
    tiny_folder(folder, family)
    file = str(folder / "model.safetensors")
    weights = {name: array.astype(mx.bfloat16) for name, array in mx.load(file).items()}
    mx.save_safetensors(file, weights, {"format": "mlx"})
    return folder


def test_stored_weights_are_computed_as_mlx_lm_computes_them(tmp_path: Path) -> None:
    """Files in bfloat16 were widened to float32 on a CPU, and the text differed from mlx-lm's."""
    folder = bfloat16_folder(tmp_path / "model")
    theirs, _ = load_model(folder)
    target = load_target(folder, compute_here("stored")).target
    assert {array.dtype for array in flat(target)} == {mx.bfloat16}
    assert answer(Pair(target), 60) == plain(theirs, PROMPT, 60)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantized_weights_stay_quantized(dtype: str) -> None:
    """`stored` that dequantizes gives the text of another model than mlx-lm's."""
    target = tiny_target("qwen3", hidden_size=64, intermediate_size=64)
    target.model.set_dtype(DTYPES[dtype])
    nn.quantize(target.model, group_size=32, bits=4)
    expected = plain(target.model, PROMPT, 40)
    draft = ScriptedDraft([*PROMPT, *expected, *PROMPT], SCRIPTS["mixed"])
    settle_weights(target.model, Compute("cpu", dense=False, dtype=None))
    assert answer(Pair(target, draft), 40) == expected


@pytest.mark.skipif(mx.metal.is_available(), reason="on Metal, auto keeps the stored dtype")
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_cpu_widens_weights_by_default(tmp_path: Path, dtype: str) -> None:
    """MLX's CPU backend multiplies 16-bit matrices several times slower than float32."""
    target = load_target(bfloat16_folder(tmp_path / "model"), compute_here(dtype)).target
    assert {array.dtype for array in flat(target)} == {mx.float32}


@pytest.mark.skipif(mx.metal.is_available(), reason="Metal computes experts in 16 bits")
def test_experts_in_16_bits_are_refused_on_a_cpu(tmp_path: Path) -> None:
    """MLX raised RuntimeError in the first forward, without the name of the model."""
    folder = bfloat16_folder(tmp_path / "model", "qwen3_moe")
    with pytest.raises(UnsupportedModel, match=r"bfloat16 and dtype is stored.*--dtype float32"):
        load_target(folder, compute_here("stored"))


def flat(target: DecoderTarget) -> list[mx.array]:
    from mlx.utils import tree_flatten

    return [array for _, array in tree_flatten(target.model.parameters())]
