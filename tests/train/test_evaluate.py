"""Two ways to measure a draft: by decoding, and at drawn anchors."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.models.pair import Pair
from dflash_mlx.train.evaluate import Prompt, by_anchors, held_out_prompts, sequentially
from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.predict import predictor
from dflash_mlx.train.samples import Sample
from tests.tiny import PROMPT, ByteTokenizer, ScriptedDraft, random_draft

NOWHERE = frozenset({-1})


def scripted(tiny_answer, script):
    """A draft that is right as often as told behind `PROMPT`."""
    return ScriptedDraft([*PROMPT, *tiny_answer], script)


def test_rounds_are_counted_as_decoding_takes_them(target, tiny_answer):
    """Figures that differ from what chat reaches mislead every choice made by them."""
    pair = Pair(target, scripted(tiny_answer, [3, 0, 1]))
    found = sequentially(pair, [Prompt(PROMPT, "chat")], NOWHERE, 11, block=4)
    # 4 + 1 + 2 + 2 + 2 tokens
    assert (found.tokens, found.rounds) == (11, 5)
    assert found.tokens_per_round == found.by_kind["chat"] == 2.2
    assert found.accepted_lengths == {0: 1, 1: 3, 3: 1}
    assert found.accepted_by_position == (4 / 5, 1 / 4, 1 / 4)


def test_kinds_are_told_apart(target, tiny_answer):
    """A draft that is good at one kind only looks fair on average."""
    pair = Pair(target, scripted(tiny_answer, [3, 3, 0]))
    prompts = [Prompt(PROMPT, "code"), Prompt(PROMPT, "chat")]
    found = sequentially(pair, prompts, NOWHERE, 8, block=4)
    assert found.by_kind == {"code": 4.0, "chat": 1.0}
    assert found.tokens_per_round == 16 / 10


def test_an_answer_ends_with_its_end_token(target, tiny_answer):
    """What a target writes behind its end token is no text, and easy to guess."""
    end = tiny_answer[5]
    first = tiny_answer.index(end)
    pair = Pair(target, scripted(tiny_answer, [10**6]))
    found = sequentially(pair, [Prompt(PROMPT, "chat")], frozenset({end}), 40, block=4)
    assert found.tokens == first + 1


def test_measuring_stops_when_told(target, tiny_answer):
    """Ctrl-C in a long evaluation is answered within a prompt."""
    pair = Pair(target, scripted(tiny_answer, [0]))
    prompts = [Prompt(PROMPT, "chat")] * 2
    assert sequentially(pair, prompts, NOWHERE, 2, 4, keep_on=lambda: False) is None


def test_anchors_count_prefixes_and_only_tokens_that_came():
    """A right token behind a wrong one is never accepted; behind the end there is none."""
    sample = Sample((1, 2), (3, 4, 5))

    def predict(given, blocks):
        assert given is sample
        assert blocks.anchors.tolist() == [1, 2, 3]
        return np.array([[3, 9, 5], [4, 5, 7], [9, 9, 9]])

    found = by_anchors(predict, [sample], block=4, per_sample=10, seed=0)
    assert found.anchors == 3
    assert found.tokens_per_round == 1 + (1 + 2 + 0) / 3
    assert found.accepted_by_position == (2 / 3, 1 / 2, 0)


def test_a_right_draft_at_anchors_is_the_right_draft_in_decoding(target, tiny_answer, tmp_path):
    """Training's forward pass and decoding's must propose the same tokens."""
    draft = random_draft(target)
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path, 0, "tiny")
    sample = Sample(PROMPT, tuple(tiny_answer[:24]))
    proposed = []

    def predict(given, blocks):
        proposed.append((blocks, predictor(draft, features, mx.float32)(given, blocks)))
        return proposed[-1][1]

    by_anchors(predict, [sample], block=8, per_sample=4, seed=3)
    blocks, tokens = proposed[0]
    for anchor, row in zip(blocks.anchors, tokens, strict=True):
        context = draft.make_context()
        draft.extend(features(sample).taps[:, :anchor].astype(mx.float32), 0, context)
        token = (*sample.prompt, *sample.answer)[anchor]
        assert draft.propose(token, 8, context).tokens[0].tolist() == row.tolist()


def test_eight_kinds_of_prompts_ship():
    """The figures of a card are comparable only over the same prompts."""
    prompts = held_out_prompts(ByteTokenizer(), None)
    kinds = {prompt.kind for prompt in prompts}
    assert kinds == {
        *("chat", "code", "arithmetic", "lists", "translation", "summary", "story", "explanation")
    }
    assert len({prompt.ids for prompt in prompts}) == len(prompts) >= 24
    assert len(held_out_prompts(ByteTokenizer(), None, per_kind=1)) == 8


def test_held_out_prompts_are_in_no_benchmark():
    """A draft chosen by the prompts it is later measured with looks better than it is."""
    from dflash_mlx.bench.suites import KINDS, bundled

    known = {prompt.text for prompt in bundled(KINDS, 100)}
    rendered = {
        ByteTokenizer().decode(prompt.ids) for prompt in held_out_prompts(ByteTokenizer(), None)
    }
    assert not [text for text in known for other in rendered if text in other]


@pytest.mark.parametrize("seed", [1, 2])
def test_anchors_are_drawn_by_the_seed(seed):
    """Two measurements of one draft must agree."""
    sample = Sample((1,), tuple(range(2, 200)))
    seen = []

    def predict(given, blocks):
        seen.append(blocks.anchors.tolist())
        return blocks.labels

    for _ in range(2):
        assert by_anchors(predict, [sample], 4, 5, seed).tokens_per_round == 4
    assert seen[0] == seen[1]
