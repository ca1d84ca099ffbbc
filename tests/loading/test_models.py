"""Folders into models: every tensor is used once, or the folder is refused."""

import json

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadCheckpoint, DFlashError, PairMismatch, UnsupportedModel
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from tests.tiny import answer, draft_config, random_draft, write_target
from tests.tiny_configs import PUBLISHED
from tests.train.tiny_folder import tiny_folder


@pytest.fixture
def weights(target):
    """The weights of a random draft, by name."""
    return dict(tree_flatten(random_draft(target).model.parameters()))


def write_draft(folder, weights, config=PUBLISHED):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def changed(**changes):
    return {**PUBLISHED, **changes}


def dflash(**changes):
    return changed(dflash_config={**PUBLISHED["dflash_config"], **changes})


def test_a_written_draft_reads_back_as_it_was(target, weights, tmp_path):
    """A misread key lowers acceptance without an error."""
    draft = load_draft(write_draft(tmp_path / "draft", weights), target, compute_here())
    assert draft.model.config == draft_config(target)
    written = answer(Pair(target, draft), 24)
    assert written == answer(Pair(target, random_draft(target)), 24)


def test_names_may_carry_the_prefix_of_re_exports(target, weights, tmp_path):
    """Some uploads have `model.` before every name."""
    prefixed = {f"model.{name}": array for name, array in weights.items()}
    draft = load_draft(write_draft(tmp_path / "draft", prefixed), target, compute_here())
    assert mx.array_equal(draft.model.fc.weight, weights["fc.weight"])


@pytest.mark.parametrize("everything", [True, False])
def test_quantized_drafts_load_partly_or_wholly(target, tmp_path, everything):
    """Published quantized drafts leave some layers dense."""
    model = random_draft(target).model
    nn.quantize(
        model,
        group_size=32,
        bits=8,
        class_predicate=lambda path, layer: (
            hasattr(layer, "to_quantized")
            and layer.weight.shape[-1] % 32 == 0
            and (everything or "mlp" in path)
        ),
    )
    stored = dict(tree_flatten(model.parameters()))
    assert any(name.endswith(".scales") for name in stored)
    draft = load_draft(write_draft(tmp_path / "draft", stored), target, compute_here())
    name = "layers.0.mlp.up_proj"
    dense = mx.dequantize(
        stored[f"{name}.weight"], stored[f"{name}.scales"], stored[f"{name}.biases"], 32, 8
    )
    if compute_here().dense:
        assert mx.array_equal(draft.model.layers[0].mlp.up_proj.weight, dense)
    assert len(answer(Pair(target, draft), 12)) == 12


def test_a_draft_brings_its_own_embedding_and_head(target, weights, tmp_path):
    """A draft with its own head was run with the target's head."""
    own = {
        "embed_tokens.weight": mx.random.normal((260, 32), key=mx.random.key(1)),
        "lm_head.weight": mx.random.normal((260, 32), key=mx.random.key(2)),
    }
    draft = load_draft(write_draft(tmp_path / "draft", weights | own), target, compute_here())
    hidden = mx.random.normal((1, 3, 32), key=mx.random.key(3))
    assert mx.allclose(draft.logits(hidden), hidden @ own["lm_head.weight"].T, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "error", "word"),
    [
        (dflash(target_layer_ids=None), BadCheckpoint, "target_layer_ids is missing"),
        (dflash(target_layer_ids=[0, 3]), BadCheckpoint, "outside the target's layers 0 to 2"),
        (dflash(target_layer_ids=[2, 2]), BadCheckpoint, "repeat"),
        (dflash(mask_token_id=None), BadCheckpoint, "mask_token_id is missing"),
        (dflash(mask_token_id=260), PairMismatch, "this target has 260 tokens"),
        (changed(block_size=None), BadCheckpoint, "block_size is missing"),
        (changed(block_size="8"), BadCheckpoint, "block_size is '8'"),
        (changed(hidden_size=64), PairMismatch, "hidden size 64, this target has 32"),
        (changed(num_target_layers=36), PairMismatch, "target layers 36, this target has 3"),
        (changed(layer_types=["sliding_attention"]), BadCheckpoint, "it needs 2 entries"),
        (changed(sliding_window=None), BadCheckpoint, "sliding_window is missing"),
        (changed(intermediate_size=64), BadCheckpoint, "has shape"),
        (changed(architectures=["DSparkDraftModel"]), UnsupportedModel, "DSparkDraftModel"),
        (changed(hidden_act="gelu"), UnsupportedModel, "gelu"),
    ],
)
def test_drafts_that_do_not_fit_are_refused(target, weights, tmp_path, config, error, word):
    """With a guessed value the draft loads, and almost no token is accepted."""
    folder = write_draft(tmp_path / "draft", weights, config)
    with pytest.raises(error, match=word):
        load_draft(folder, target, compute_here())


@pytest.mark.parametrize("where", ["dflash_config", "top"])
def test_the_block_size_is_read_from_both_places(target, weights, tmp_path, where):
    """A block size of 16 was used for drafts trained with 8."""
    config = dflash(block_size=8) if where == "dflash_config" else PUBLISHED
    config = {**config, "block_size": 4} if where == "dflash_config" else config
    draft = load_draft(write_draft(tmp_path / "draft", weights, config), target, compute_here())
    assert draft.block_size == 8


@pytest.mark.parametrize("nested", [True, False])
def test_rope_theta_is_read_from_both_places(target, weights, tmp_path, nested):
    """Drafts saved by transformers 5 nest rope_theta, and loading failed."""
    config = dict(PUBLISHED)
    if nested:
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    draft = load_draft(write_draft(tmp_path / "draft", weights, config), target, compute_here())
    assert draft.model.config.rope_theta == 10000.0


def test_superfluous_and_missing_weights_are_named(target, weights, tmp_path):
    """A superfluous tensor belongs to a draft of another kind."""
    strange = {**weights, "markov_head.weight": mx.zeros((2, 2))}
    with pytest.raises(BadCheckpoint, match=r"no place for markov_head\.weight"):
        load_draft(write_draft(tmp_path / "one", strange), target, compute_here())
    del weights["hidden_norm.weight"]
    with pytest.raises(BadCheckpoint, match=r"lacks hidden_norm\.weight"):
        load_draft(write_draft(tmp_path / "two", weights), target, compute_here())


def test_a_draft_as_the_target_and_a_target_as_the_draft_are_told_apart(target, weights, tmp_path):
    """Swapped folders gave an error about missing tensors."""
    draft = write_draft(tmp_path / "draft", weights)
    with pytest.raises(UnsupportedModel, match="holds a draft, not a target"):
        load_target(draft, compute_here())
    with pytest.raises(UnsupportedModel, match="holds a 'qwen3' target, not a draft"):
        load_draft(write_target(tmp_path / "target"), target, compute_here())


@pytest.mark.parametrize("n_bytes", [0, 4, 100, 3000])
def test_truncated_weights_are_named(target, weights, tmp_path, n_bytes):
    """An interrupted copy gave a traceback, or a model of zeros."""
    file = write_draft(tmp_path / "draft", weights) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:n_bytes])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load_draft(file.parent, target, compute_here())
    folder = tiny_folder(tmp_path / "target")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:n_bytes])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load_target(folder, compute_here())


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_a_configuration_is_refused(target, tmp_path, text):
    """A JSON error named neither file nor remedy."""
    tmp_path.joinpath("model").mkdir()
    if text is not None:
        (tmp_path / "model" / "config.json").write_text(text)
    for load in (
        lambda p: load_target(p, compute_here()),
        lambda p: load_draft(p, target, compute_here()),
    ):
        with pytest.raises(DFlashError, match=r"config\.json"):
            load(tmp_path / "model")


def test_an_unsupported_family_is_refused_with_the_supported_ones(tmp_path):
    """An exception of mlx-lm did not say which families are supported."""
    folder = write_target(tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(UnsupportedModel, match=r"'mamba'; supported targets: .*qwen3"):
        load_target(folder, compute_here())


def test_weights_are_not_held_twice(target, weights, tmp_path):
    """Loading held the stored and the converted weights of the whole model at once."""
    folder = write_draft(tmp_path / "draft", {k: v.astype(mx.bfloat16) for k, v in weights.items()})
    load_draft(folder, target, compute_here())
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    draft = load_draft(folder, target, compute_here())
    used = sum(a.nbytes for _, a in tree_flatten(draft.model.parameters()))
    assert mx.get_peak_memory() - before <= used * 1.6
