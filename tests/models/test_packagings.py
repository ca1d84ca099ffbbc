"""Published targets that wrap their text model: nested names, vision towers, extra heads."""

import json

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.loading.compute import Compute, settle_weights
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.families import TARGET_CLASSES, family_of
from dflash_mlx.models.targets.model_types import MLX_LM_MODULES
from tests.tiny import PROMPT, ScriptedDraft, answer, plain, tiny_model
from tests.tiny_configs import CONFIGS

TOKENS = mx.array([[5, 9, 77, 200, 31]])
NORMS = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")


def logits(model, model_type):
    target = family_of(model_type, model_type)(model)
    return target.logits(target.forward(TOKENS, target.make_caches(), ()).hidden)


def write(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def published(name, weight):
    """Return a tensor of `qwen3_5` with the name and layout of transformers."""
    if name.endswith("conv1d.weight"):
        weight = weight.swapaxes(1, 2)
    elif name.endswith(NORMS):
        weight = weight - 1
    return name.replace("language_model.model", "model.language_model"), weight


def test_a_multimodal_qwen3_5_loads_as_its_text_model(tmp_path):
    """Its norms are stored around zero, with a vision tower and a multi-token head beside them."""
    model = tiny_model("qwen3_5")
    weights = dict(published(*item) for item in tree_flatten(model.parameters()))
    weights["model.visual.patch_embed.weight"] = mx.zeros((4, 4))
    weights["mtp.fc.weight"] = mx.zeros((4, 4))
    folder = write(tmp_path / "model", {**CONFIGS["qwen3_5"], "vision_config": {}}, weights)
    loaded, _ = load_model(folder)
    assert mx.allclose(logits(loaded, "qwen3_5"), logits(model, "qwen3_5"), atol=1e-4)


def test_norms_of_a_conversion_that_kept_its_mtp_head_are_not_shifted_again(tmp_path):
    """Norms of such conversions were shifted twice, and the text was garbage."""
    model = tiny_model("qwen3_5")
    weights = dict(tree_flatten(model.parameters())) | {"mtp.fc.weight": mx.zeros((4, 4))}
    folder = write(tmp_path / "model", CONFIGS["qwen3_5"], weights)
    loaded, _ = load_model(folder)
    assert mx.array_equal(logits(loaded, "qwen3_5"), logits(model, "qwen3_5"))


def test_a_unified_gemma_loads_as_gemma_4(tmp_path):
    """All community builds of the 12B have the model_type `gemma4_unified`."""
    model = tiny_model("gemma4")
    weights = dict(tree_flatten(model.parameters()))
    weights |= {"vision_embedder.weight": mx.zeros((4, 4)), "embed_audio.weight": mx.zeros((4, 4))}
    config = {**CONFIGS["gemma4"], "model_type": "gemma4_unified"}
    loaded, _ = load_model(write(tmp_path / "model", config, weights))
    assert mx.array_equal(logits(loaded, "gemma4_unified"), logits(model, "gemma4"))


def test_a_tied_gemma_3_uses_its_embedding_as_head(tmp_path):
    """Published Gemma 3 files lack a head, and their configuration has no key for it."""
    model = tiny_model("gemma3_text")
    weights = dict(tree_flatten(model.parameters()))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_weights(list(weights.items()))
    expected = logits(model, "gemma3_text")
    del weights["lm_head.weight"]
    loaded, _ = load_model(write(tmp_path / "model", CONFIGS["gemma3_text"], weights))
    assert mx.allclose(logits(loaded, "gemma3_text"), expected, atol=1e-5)


def test_an_unsupported_family_is_refused_with_the_supported_ones():
    """The message did not say which families are supported."""
    with pytest.raises(UnsupportedModel, match=r"'mamba2'.*deepseek_v3.*qwen3_next"):
        family_of("mamba2", "a folder")


def test_every_family_has_a_tiny_configuration():
    """A family without one would run untested; types that mlx-lm remaps share their module's."""
    read_as_itself = {name for name, module in MLX_LM_MODULES.items() if name == module}
    assert read_as_itself == {config["model_type"] for config in CONFIGS.values()}
    assert set(MLX_LM_MODULES.values()) == TARGET_CLASSES.keys()


def test_mlx_lm_reads_each_model_type_with_the_module_of_the_table():
    """mlx-lm remaps some types; a type that it no longer remaps would fail in every folder."""
    from mlx_lm.utils import _get_classes

    for model_type, module in MLX_LM_MODULES.items():
        model_class, _ = _get_classes({"model_type": model_type})
        assert model_class.__module__ == f"mlx_lm.models.{module}"


@pytest.mark.parametrize("packed", [True, False], ids=["as stored", "dense"])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5", "gpt_oss", "gemma4_small"])
def test_quantized_targets_write_what_mlx_lm_writes(family, packed):
    """Community builds have 8-bit embeddings, heads and experts, which Metal keeps packed."""
    model = tiny_model(family)
    nn.quantize(model, 32, 8, class_predicate=_can_be_quantized)
    if not packed:
        settle_weights(model, Compute("cpu", dense=True, dtype=mx.float32))
    target = family_of(CONFIGS[family]["model_type"], family)(model)
    want = plain(model, PROMPT, 24)
    draft = ScriptedDraft([*PROMPT, *want], [2, 7, 0])
    assert answer(Pair(target, draft), 24) == want


def _can_be_quantized(path, layer):
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0
