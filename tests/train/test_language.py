"""A draft learns all that a made-up language allows.

Words are three letters long and every letter follows from the two before it, not from one: the
middle letters are shared by two words each. Which word comes next is chance, and the likeliest
has 0.4 of it. A block that begins at some letter of a word can therefore be right for the letters
left, and then as far as the guess of the likeliest word carries: where it comes, it brings its
letters and another guess.
"""

import mlx.core as mx
import numpy as np

from dflash_mlx.models.draft.build import bind
from dflash_mlx.train.anchors import blocks_at
from dflash_mlx.train.beginning import new_draft
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.head import whole_head
from dflash_mlx.train.loss import accepted_by_slot
from dflash_mlx.train.objective import Example, hidden_rows
from dflash_mlx.train.recipe import Recipe
from dflash_mlx.train.samples import Sample
from dflash_mlx.train.trainer import train
from tests.tiny import draft_config, tiny_target

WORDS = ((0, 4, 6), (1, 4, 7), (2, 5, 8), (3, 5, 9))
CHANCES = (0.4, 0.3, 0.2, 0.1)
LENGTH, BLOCK = 3, 4


def text(rng):
    """Twenty words, the first of them as the prompt."""
    words = rng.choice(len(WORDS), size=20, p=CHANCES)
    letters = [letter for word in words for letter in WORDS[word]]
    return Sample(tuple(letters[:LENGTH]), tuple(letters[LENGTH:]))


def allowed_tokens_per_round():
    """The mean over the letters an anchor can be: 1, and the draft tokens that can be right."""

    def expected(slots, sure):
        if slots <= sure:
            return float(slots)
        return sure + CHANCES[0] * (1 + expected(slots - sure - 1, LENGTH - 1))

    return 1 + np.mean([expected(BLOCK - 1, LENGTH - 1 - letter) for letter in range(LENGTH)])


def measured(draft, features, texts):
    """Tokens per round over every anchor that has a whole block behind it."""
    head, right = whole_head(draft), []
    for sample in texts:
        tokens, first = np.array([*sample.prompt, *sample.answer]), LENGTH - 1
        blocks = blocks_at(tokens, np.arange(first, len(tokens) - BLOCK + 1), BLOCK)
        example = Example(tokens, first, blocks, features(sample))
        best = mx.argmax(head.project(hidden_rows(draft, example, mx.float32)), axis=-1)
        right.append(np.array(best) == blocks.labels)
    return 1 + accepted_by_slot(np.concatenate(right)).sum()


def test_training_reaches_what_the_language_allows(tmp_path):
    """A fault in mask, positions, labels, features or optimiser stops short of it."""
    rng, target = np.random.default_rng(0), tiny_target()
    texts, unseen = [text(rng) for _ in range(64)], [text(rng) for _ in range(64)]
    full = {"layer_types": ("full_attention",) * 2, "in_block_causal": (False, False)}
    config = draft_config(target, block_size=BLOCK, target_layer_ids=(0, 1), **full)
    draft = bind(new_draft(config, seed=1), target)
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path / "features", 10**9, "tiny")
    before = measured(draft, features, unseen)
    recipe = Recipe(steps=250, sequences=2, learning_rate=1e-2, distillation=0.0, narrow=0.0)
    train(draft, texts, features, recipe, tmp_path / "c.safetensors", lambda progress: "on")
    after, allowed = measured(draft, features, unseen), allowed_tokens_per_round()
    assert before < 1.2
    # the guessed word comes as often as it happens to in 64 texts: two deviations are 0.05
    assert 0.97 * allowed < after < 1.04 * allowed, (before, after, allowed)
