"""Drafts in every layout they are published in become one that loads, with the same values."""

import json

import mlx.core as mx
import pytest

from dflash_mlx.compute import Compute, settle_weights
from dflash_mlx.errors import BadCheckpoint, BadRequest, PairMismatch, UnsupportedModel
from dflash_mlx.loading import load_draft
from dflash_mlx.models.draft import BoundDraft, DraftModel
from dflash_mlx.models.draft_config import read_draft_config
from dflash_mlx.weights import fill
from tests.convert.checkpoints import (
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

LAYOUTS = {
    "published": (DRAFT_CONFIG, lambda name: name, {}),
    "with a model prefix": (DRAFT_CONFIG, lambda name: f"model.{name}", {}),
    "speculators": (
        speculators_config(),
        lambda name: name,
        {"verifier_norm.weight": mx.ones((64,)), "verifier_lm_head.weight": mx.ones((260, 64))},
    ),
}


@pytest.fixture(scope="module")
def target():
    return tiny_target("qwen3", **WIDE)


def proposed(draft: BoundDraft, target) -> mx.array:
    """The hidden rows of one block over a context of five rows."""
    context = draft.make_context()
    features = mx.random.normal((1, 5, draft.model.config.feature_size), key=mx.random.key(5))
    draft.extend(features, 0, context)
    return draft.hidden(7, 8, context)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_converted_equals_the_same_draft_unconverted(tmp_path, target, layout):
    """Layer ids off by one, or a lost prefix, cost acceptance and nothing else: nobody notices."""
    config, rename, more = LAYOUTS[layout]
    weights = {rename(name): array for name, array in draft_weights().items()} | more
    source = draft_folder(tmp_path / "source", weights, config)
    run(source, tmp_path / "out", dequantize=True)
    model = DraftModel(read_draft_config(DRAFT_CONFIG), own_embedding=False, own_head=False)
    fill(model, draft_weights(), "the published draft")
    settle_weights(model, STORED)
    expected = proposed(BoundDraft(model, target), target)
    converted = load_draft(tmp_path / "out", target, STORED)
    assert converted.taps == (0, 2)
    assert mx.array_equal(proposed(converted, target), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"bits": 8}, {"mode": "mxfp4"}, {"recipe": "uniform"}])
def test_a_quantized_draft_loads_and_computes_what_its_values_say(
    tmp_path, target, layout, options
):
    """4-bit drafts are what people have, and most loaders cannot read them at all."""
    config, rename, more = LAYOUTS[layout]
    weights = {rename(name): array for name, array in draft_weights().items()} | more
    source = draft_folder(tmp_path / "source", weights, config)
    run(source, tmp_path / "packed", **options)
    run(tmp_path / "packed", tmp_path / "values", dequantize=True, dtype="float32")
    packed = proposed(load_draft(tmp_path / "packed", target, DENSE), target)
    values = proposed(load_draft(tmp_path / "values", target, DENSE), target)
    assert mx.array_equal(packed, values)
    near = proposed(load_draft(tmp_path / "packed", target, STORED), target)
    assert mx.allclose(near, values, rtol=0.1, atol=0.1), "packed products are those of the values"


def test_the_draft_recipe_keeps_the_sensitive_weights_wide(tmp_path):
    """fc carries all that the draft knows of its target; half its bits cost the most."""
    run(draft_folder(tmp_path / "source"), tmp_path / "out")
    settings = json.loads((tmp_path / "out/config.json").read_text())["quantization"]
    wide = {path for path, entry in settings.items() if isinstance(entry, dict)}
    assert wide == {"fc", "layers.0.self_attn.o_proj", "layers.1.self_attn.o_proj"}
    assert settings["bits"] == 4
    assert settings["fc"]["bits"] == 8


def test_the_whole_configuration_of_a_draft_is_kept(tmp_path):
    """Conversions elsewhere have lost the mask token and the taps."""
    run(draft_folder(tmp_path / "source"), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["dflash_config"] == DRAFT_CONFIG["dflash_config"]
    assert read_draft_config(config).in_block_causal == (True, False)
    assert "auto_map" not in config, "it would ask for code that did not come along"


def test_a_draft_without_its_weights_or_with_others_is_refused(tmp_path):
    """A missing norm loads as ones and halves the acceptance."""
    weights = draft_weights()
    del weights["hidden_norm.weight"]
    source = draft_folder(tmp_path / "source", weights)
    with pytest.raises(BadCheckpoint, match=r"lacks hidden_norm\.weight"):
        run(source, tmp_path / "out")
    draft_folder(source, draft_weights() | {"lora.a": mx.zeros((2, 2))})
    with pytest.raises(BadCheckpoint, match=r"holds lora\.a"):
        run(source, tmp_path / "out")
    draft_folder(source, draft_weights() | {"model.norm.weight": mx.zeros((64,))})
    with pytest.raises(BadCheckpoint, match="under two names"):
        run(source, tmp_path / "out")


def test_auto_is_refused_for_a_draft(tmp_path):
    """A draft alone has no text to be measured on; pretending would give a random recipe."""
    with pytest.raises(UnsupportedModel, match="--recipe draft"):
        run(draft_folder(tmp_path / "source"), tmp_path / "out", recipe="auto:5")


def test_a_pair_is_one_folder_that_loads(tmp_path, target):
    """Target and draft apart are two things to mix up."""
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
    """Such a pair would run and accept nothing."""
    source = target_folder(tmp_path / "target", "qwen3", **changes)
    with pytest.raises(PairMismatch, match=words):
        run(source, tmp_path / "out", draft=str(draft_folder(tmp_path / "draft")))


def test_target_and_draft_the_wrong_way_round_are_told_apart(tmp_path):
    """The kind is read from the content, never from a name."""
    source = target_folder(tmp_path / "dflash-draft", "qwen3")
    draft = draft_folder(tmp_path / "target")
    with pytest.raises(BadRequest, match="give the target first"):
        run(draft, tmp_path / "out", draft=str(source))
