"""Resolving a request: block size, thinking mode and notices from its options and the pair."""

import mlx.core as mx
import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.resolved_request import resolve_request
from dflash_mlx.loading.compute import Compute
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs import registry
from tests.tiny import ByteTokenizer, loaded_pair, random_draft

METAL = Compute("metal", dense=False, dtype=None)
CPU = Compute("cpu", dense=True, dtype=mx.float32)


class ThinkingTokenizer(ByteTokenizer):
    has_thinking = True
    thinking_switch = "enable_thinking"
    thinking_marks = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("compute", "quantized", "asked", "expected"),
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
    target, compute, quantized, asked, expected
):
    """The draft's own block size, 16, cost a quantized target a quarter of its throughput."""
    pair = Pair(target, random_draft(target))
    loaded = loaded_pair(pair, compute=compute, quantized=quantized)
    assert resolve_request(loaded, GenerationConfig(block_size=asked)).block_size == expected


@pytest.mark.parametrize(
    ("asked", "used", "n_warnings"), [(None, False, 0), (False, False, 0), (True, True, 1)]
)
def test_the_trained_thinking_mode_is_the_default_and_another_one_warns(
    target, asked, used, n_warnings
):
    """Thinking with a draft that was trained without it halved the acceptance, with no notice."""
    pair = Pair(target, random_draft(target))
    card = registry.find("qwen3-8b")
    loaded = loaded_pair(pair, trained_thinking=card.thinking, tokenizer=ThinkingTokenizer())
    request = resolve_request(loaded, GenerationConfig(thinking=asked))
    assert request.thinking is used
    assert len(request.notices) == n_warnings
    assert all("trained with thinking off" in notice for notice in request.notices)


def test_thinking_is_on_by_default_where_the_model_has_it(target):
    """mlx-lm's default applied, but no output named it."""
    loaded = loaded_pair(Pair(target), tokenizer=ThinkingTokenizer())
    assert resolve_request(loaded).thinking is True
    assert resolve_request(loaded, GenerationConfig(chat_template=False)).thinking is None
    assert resolve_request(loaded_pair(Pair(target))).thinking is None


def test_without_a_draft_its_training_does_not_matter(target):
    """The warning appeared for a draft that was not loaded."""
    loaded = loaded_pair(Pair(target), trained_thinking=False, tokenizer=ThinkingTokenizer())
    assert resolve_request(loaded, GenerationConfig(thinking=True)).notices == ()


def test_a_target_without_a_known_draft_has_a_notice(target):
    """Plain decoding without a notice looked like a draft that does not help."""
    loaded = loaded_pair(Pair(target), no_draft="no draft is known for x; decoding plainly")
    assert resolve_request(loaded).notices == ("no draft is known for x; decoding plainly",)


def test_a_seed_is_drawn_once_per_request(target):
    """A seed drawn while decoding could differ from the one in the result."""
    loaded = loaded_pair(Pair(target))
    seeds = {resolve_request(loaded).seed for _ in range(3)}
    assert len(seeds) == 3  # false alarm odds 1e-9
