"""What a loaded pair decides for a request: rows, thinking, what the user should know."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.config import GenerationConfig
from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs import registry
from tests.tiny import ByteTokenizer, loaded_pair, random_draft
from tests.tiny_configs import PUBLISHED

METAL = Compute("metal", dense=False, dtype=None)
CPU = Compute("cpu", dense=True, dtype=mx.float32)


class ThinkingTokenizer(ByteTokenizer):
    has_thinking = True
    thinking_marks = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("compute", "quantized", "asked", "rows"),
    [
        (CPU, False, None, 8),
        (CPU, True, None, 8),
        (METAL, False, None, 8),
        (METAL, True, None, 5),
        (METAL, True, 8, 8),
        (METAL, True, 1, 1),
    ],
)
def test_unmeasured_quantized_targets_on_metal_get_short_blocks(
    target, compute, quantized, asked, rows
):
    """The draft's own 16 rows lose a quarter of the speed on a quantized target."""
    pair = Pair(target, random_draft(target))
    loaded = loaded_pair(pair, compute=compute, quantized=quantized)
    assert loaded.block_size(GenerationConfig(block_size=asked)) == rows


@pytest.mark.parametrize(
    ("asked", "used", "warned"), [(None, False, 0), (False, False, 0), (True, True, 1)]
)
def test_the_mode_a_draft_was_trained_for_is_the_default_and_another_is_warned_of(
    target, asked, used, warned
):
    """Thinking on with a draft that never saw thoughts halved the acceptance, unsaid."""
    pair = Pair(target, random_draft(target))
    card = registry.find("qwen3-8b")
    loaded = loaded_pair(pair, trained_thinking=card.thinking, tokenizer=ThinkingTokenizer())
    config = GenerationConfig(thinking=asked)
    assert loaded.thinking(config) is used
    notices = loaded.notices(config)
    assert len(notices) == warned
    assert all("trained with thinking off" in notice for notice in notices)


def test_a_model_that_can_think_does_unless_told_otherwise(target):
    """mlx-lm's default was in force and nowhere said."""
    loaded = loaded_pair(Pair(target), tokenizer=ThinkingTokenizer())
    assert loaded.thinking(GenerationConfig()) is True
    assert loaded.thinking(GenerationConfig(chat_template=False)) is None
    assert loaded_pair(Pair(target)).thinking(GenerationConfig()) is None


def test_without_a_draft_its_training_does_not_matter(target):
    """A warning about a draft that does not run is noise."""
    loaded = loaded_pair(Pair(target), trained_thinking=False, tokenizer=ThinkingTokenizer())
    assert loaded.notices(GenerationConfig(thinking=True)) == []


def test_a_target_without_a_known_draft_says_so_with_every_answer(target):
    """DFlash asked for and not running looked like DFlash that does not help."""
    loaded = loaded_pair(Pair(target), no_draft="no draft is known for x; decoding plainly")
    assert loaded.notices(GenerationConfig()) == ["no draft is known for x; decoding plainly"]


def test_a_draft_stored_in_half_precision_does_not_run_in_it(target, tmp_path):
    """On M1 and M2 such drafts gave NaN, no acceptance and 0.44 of the speed."""
    weights = dict(tree_flatten(random_draft(target).model.parameters()))
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    halves = {name: array.astype(mx.float16) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), halves)
    types = {
        array.dtype
        for _, array in tree_flatten(load_draft(folder, target, METAL).model.parameters())
    }
    assert types == {mx.bfloat16}
