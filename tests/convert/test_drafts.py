"""Drafts in every published layout convert to one that loads with the same values."""

import json

import mlx.core as mx
import pytest

from dflash_mlx.errors import BadCheckpoint, BadRequest, PairMismatch, UnsupportedModel
from dflash_mlx.loading.compute import Compute, settle_weights
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.weights import fill
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.models.draft.dflash import BoundDraft
from tests.convert.checkpoints import (
    DRAFT2_CONFIG,
    DRAFT_CONFIG,
    WIDE,
    draft_folder,
    draft_weights,
    run,
    same,
    speculators_config,
    target_folder,
    weights_of,
)
from tests.tiny import tiny_target

STORED = Compute("cpu", dense=False, dtype=mx.float32)
DENSE = Compute("cpu", dense=True, dtype=mx.float32)

REDUCED = {**speculators_config(), "draft_vocab_size": 96}
IDS = mx.array(sorted({(7 * i) % 260 for i in range(96)}), dtype=mx.int64)
COPIES = {"verifier_norm.weight": mx.ones((64,)), "verifier_lm_head.weight": mx.ones((260, 64))}


def with_own_head():
    """Tensors of a draft whose head predicts 96 of 260 tokens; d2t maps them to target ids."""
    weights = draft_weights(REDUCED, ("lm_head.weight", "d2t"))
    reached = mx.zeros((260,), dtype=mx.bool_)
    reached[IDS] = True
    return weights | {"d2t": IDS - mx.arange(96, dtype=mx.int64), "t2d": reached}


def raw_codebooks(weights):
    """DFlash 2's tensors as published: codebooks without `.weight`."""
    return {name.replace("codebook.weight", "codebook"): array for name, array in weights.items()}


def prefixed(weights):
    return {f"model.{name}": array for name, array in weights.items()}


LAYOUTS = {
    # configuration, tensors as the runtime names them, and as the files do
    "published": (DRAFT_CONFIG, draft_weights, dict),
    "with a model prefix": (DRAFT_CONFIG, draft_weights, prefixed),
    "speculators": (speculators_config(), draft_weights, lambda weights: weights | COPIES),
    "speculators with a reduced vocabulary": (REDUCED, with_own_head, dict),
    "DFlash 2": (DRAFT2_CONFIG, lambda: draft_weights(DRAFT2_CONFIG), raw_codebooks),
}


def layout_folder(folder, layout):
    config, make, publish = LAYOUTS[layout]
    return draft_folder(folder, publish(make()), config)


@pytest.fixture(scope="module")
def target():
    return tiny_target("qwen3", **WIDE)


def proposed(draft: BoundDraft) -> list[mx.array]:
    """The tokens and hidden rows of one block over a context of five rows."""
    context = draft.make_context()
    features = mx.random.normal((1, 5, draft.model.config.feature_size), key=mx.random.key(5))
    draft.extend(features, 0, context)
    return [draft.propose(7, 8, context).tokens, draft.hidden(7, 8, context)]


def equal(ours, theirs) -> bool:
    return all(mx.array_equal(*arrays) for arrays in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_converts_to_the_same_draft(tmp_path, target, layout):
    """Layer ids off by one, or a lost prefix, lower acceptance without any error."""
    config, make, _ = LAYOUTS[layout]
    run(layout_folder(tmp_path / "source", layout), tmp_path / "out", dequantize=True)
    weights = {name: array for name, array in make().items() if name != "t2d"}
    model = draft_model(read_draft_config(config), weights)
    fill(model, weights, "the draft itself")
    settle_weights(model, STORED)
    converted = load_draft(tmp_path / "out", target, STORED)
    assert converted.target_layer_ids == (0, 2)
    assert equal(proposed(converted), proposed(bind(model, target)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"mode": "mxfp4"}])
def test_a_quantized_draft_computes_its_dequantized_values(tmp_path, target, layout, options):
    """A quantized draft computed other values than its dequantized weights."""
    source = layout_folder(tmp_path / "source", layout)
    run(source, tmp_path / "packed", dtype="float32", **options)
    run(tmp_path / "packed", tmp_path / "values", dequantize=True, dtype="float32")
    values = proposed(load_draft(tmp_path / "values", target, DENSE))
    assert equal(proposed(load_draft(tmp_path / "packed", target, DENSE)), values)
    near = proposed(load_draft(tmp_path / "packed", target, STORED))
    assert mx.allclose(near[1], values[1], rtol=1e-3, atol=1e-3), "products are those of values"


def test_tables_of_a_reduced_vocabulary_are_copied(tmp_path):
    """A rounded or reordered table maps every draft token to a wrong target token."""
    layout = "speculators with a reduced vocabulary"
    run(layout_folder(tmp_path / "source", layout), tmp_path / "out", bits=4)
    weights = weights_of(tmp_path / "out")
    assert mx.array_equal(weights["d2t"], with_own_head()["d2t"])
    assert weights["lm_head.scales"].shape == (96, 1)


def test_the_draft_recipe_keeps_8_bits_for_sensitive_weights(tmp_path):
    """fc carries all of the target's features; at 4 bits it lowers acceptance most."""
    run(draft_folder(tmp_path / "source"), tmp_path / "out")
    settings = json.loads((tmp_path / "out/config.json").read_text())["quantization"]
    wide = {path for path, entry in settings.items() if isinstance(entry, dict)}
    assert wide == {"fc", "layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj"}
    assert settings["bits"] == 4
    assert settings["fc"]["bits"] == 8


def test_the_whole_configuration_of_a_draft_is_kept(tmp_path):
    """Other converters drop the mask token and the target layer ids."""
    run(draft_folder(tmp_path / "source"), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dflash_config"] == DRAFT_CONFIG["dflash_config"]
    assert read_draft_config(config).in_block_causal == (True, False)
    assert "auto_map" not in config, "it would ask for code that did not come along"


def test_missing_and_unexpected_tensors_of_a_draft_are_named(tmp_path):
    """A missing norm would load as ones and halve the acceptance."""
    weights = draft_weights()
    del weights["hidden_norm.weight"]
    source = draft_folder(tmp_path / "source", weights)
    with pytest.raises(BadCheckpoint, match=r"lacks hidden_norm\.weight"):
        run(source, tmp_path / "out")
    draft_folder(source, draft_weights() | {"lora.a": mx.zeros((2, 2))})
    with pytest.raises(BadCheckpoint, match=r"contains lora\.a"):
        run(source, tmp_path / "out")
    draft_folder(source, draft_weights() | {"model.norm.weight": mx.zeros((64,))})
    with pytest.raises(BadCheckpoint, match="under two names"):
        run(source, tmp_path / "out")


def test_auto_is_refused_for_a_draft(tmp_path):
    """A draft cannot run on text without its target, so its recipe would be random."""
    with pytest.raises(UnsupportedModel, match="--recipe draft"):
        run(draft_folder(tmp_path / "source"), tmp_path / "out", recipe="auto:5")


def test_a_pair_is_one_folder_that_loads(tmp_path, target, monkeypatch):
    """Separate folders of target and draft are easily combined wrongly."""
    monkeypatch.setattr("dflash_mlx.convert.check.acceptance._N_TOKENS", 8)
    source = target_folder(tmp_path / "target", "qwen3")
    out = tmp_path / "pair"
    outcome = run(source, out, draft=str(draft_folder(tmp_path / "draft")), verify=True)
    assert load_draft(out / "draft", target, STORED).block_size == 8
    acceptance = outcome.checks[1].acceptance
    assert acceptance is not None
    assert acceptance.tokens_per_round_after >= 1
    again = run(out, tmp_path / "again")
    assert again.unchanged
    assert same(weights_of(out / "draft"), weights_of(tmp_path / "again/draft")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"hidden_size": 128}, "hidden size 64"), ({"num_hidden_layers": 4}, "layers 3")],
)
def test_a_draft_for_another_target_is_refused(tmp_path, changes, words):
    """Such a pair would run and accept almost no draft token."""
    source = target_folder(tmp_path / "target", "qwen3", **changes)
    with pytest.raises(PairMismatch, match=words):
        run(source, tmp_path / "out", draft=str(draft_folder(tmp_path / "draft")))


def test_swapped_target_and_draft_are_refused(tmp_path):
    """The kind comes from the content, not from the folder's name."""
    source = target_folder(tmp_path / "dflash-draft", "qwen3")
    draft = draft_folder(tmp_path / "target")
    with pytest.raises(BadRequest, match="give the target first"):
        run(draft, tmp_path / "out", draft=str(source))
