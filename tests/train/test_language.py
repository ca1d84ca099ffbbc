"""A draft reaches the acceptance that a synthetic language allows.

Words have three letters. Each letter follows from the two before it, not from one: two words
share each middle letter. The next word is random; the most likely one has a probability of 0.4. A
block that starts inside a word can be right for the rest of the word, and then for as long as the
next words are the most likely one.
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.models.draft.build import bind
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.loss import TrainingExample, accepted_by_position, block_hidden
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.loop.trainer import train
from dflash_mlx.train.model.forward import blocks_at, full_head
from dflash_mlx.train.model.initial_draft import new_draft
from tests.tiny import draft_config, tiny_target

WORDS = ((0, 4, 6), (1, 4, 7), (2, 5, 8), (3, 5, 9))
CHANCES = (0.4, 0.3, 0.2, 0.1)
LENGTH, BLOCK = 3, 4


def text(rng):
    """Return twenty words; the first is the prompt."""
    words = rng.choice(len(WORDS), size=20, p=CHANCES)
    letters = [letter for word in words for letter in WORDS[word]]
    return Sample(tuple(letters[:LENGTH]), tuple(letters[LENGTH:]))


def allowed_tokens_per_round():
    """Return the mean over the letters of a word: 1 plus the draft tokens that can be right."""

    def expected(positions, certain):
        if positions <= certain:
            return float(positions)
        return certain + CHANCES[0] * (1 + expected(positions - certain - 1, LENGTH - 1))

    return 1 + np.mean([expected(BLOCK - 1, LENGTH - 1 - letter) for letter in range(LENGTH)])


def measured(draft, features, texts):
    """Return the tokens per round over all anchors with a full block after them."""
    head, right = full_head(draft), []
    for sample in texts:
        tokens, first = np.array([*sample.prompt, *sample.answer]), LENGTH - 1
        blocks = blocks_at(tokens, np.arange(first, len(tokens) - BLOCK + 1), BLOCK)
        example = TrainingExample(tokens, first, blocks, features(sample))
        best = mx.argmax(head.project(block_hidden(draft, example, mx.float32)), axis=-1)
        right.append(np.array(best) == blocks.labels)
    return 1 + accepted_by_position(np.concatenate(right)).sum()


def test_training_reaches_the_acceptance_the_language_allows(tmp_path):
    """A fault in mask, positions, labels, features or optimiser stays below it."""
    rng, target = np.random.default_rng(0), tiny_target()
    texts, unseen = [text(rng) for _ in range(64)], [text(rng) for _ in range(64)]
    full = {"layer_types": ("full_attention",) * 2, "in_block_causal": (False, False)}
    config = draft_config(target, block_size=BLOCK, target_layer_ids=(0, 1), **full)
    draft = bind(new_draft(config, seed=1), target)
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path / "features", 10**9, "tiny")
    before = measured(draft, features, unseen)
    recipe = Recipe(
        steps=250, samples_per_step=2, learning_rate=1e-2, distillation=0.0, reduced_head_share=0.0
    )
    train(draft, texts, features, recipe, tmp_path / "c.safetensors", lambda report: "continue")
    after, allowed = measured(draft, features, unseen), allowed_tokens_per_round()
    assert before < 1.2
    # the most likely word occurs by chance in 64 texts: two standard deviations are 0.05
    assert 0.97 * allowed < after < 1.04 * allowed, (before, after, allowed)
