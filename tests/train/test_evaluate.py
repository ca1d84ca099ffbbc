"""Evaluation of a draft by decoding, and at uniform anchors."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.models.pair import Pair
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.evaluate import (
    HeldOutPrompt,
    block_predictor,
    evaluate_anchors,
    evaluate_decoding,
    held_out_prompts,
)
from dflash_mlx.train.loop.features import FeatureStore
from tests.tiny import PROMPT, ByteTokenizer, ScriptedDraft, random_draft

NO_END = frozenset({-1})


def scripted(tiny_answer, script):
    """A draft that accepts the scripted number of tokens after `PROMPT`."""
    return ScriptedDraft([*PROMPT, *tiny_answer], script)


def test_rounds_are_those_of_decoding(target, tiny_answer):
    """Figures that differ from `chat` choose the wrong draft."""
    pair = Pair(target, scripted(tiny_answer, [3, 0, 1]))
    found = evaluate_decoding(pair, [HeldOutPrompt(PROMPT, "chat")], NO_END, 11, block_size=4)
    # 4 + 1 + 2 + 2 + 2 tokens
    assert (found.tokens, found.rounds) == (11, 5)
    assert found.tokens_per_round == found.by_kind["chat"] == 2.2
    assert found.accepted_lengths == {0: 1, 1: 3, 3: 1}
    assert found.accepted_by_position == (4 / 5, 1 / 4, 1 / 4)


def test_kinds_are_reported_separately(target, tiny_answer):
    """The mean hides a draft that is good at one kind only."""
    pair = Pair(target, scripted(tiny_answer, [3, 3, 0]))
    prompts = [HeldOutPrompt(PROMPT, "code"), HeldOutPrompt(PROMPT, "chat")]
    found = evaluate_decoding(pair, prompts, NO_END, 8, block_size=4)
    assert found.by_kind == {"code": 4.0, "chat": 1.0}
    assert found.tokens_per_round == 16 / 10


def test_an_answer_ends_with_its_end_token(target, tiny_answer):
    """Text after the end token is easy to predict and inflated the figures."""
    end = tiny_answer[5]
    first = tiny_answer.index(end)
    pair = Pair(target, scripted(tiny_answer, [10**6]))
    found = evaluate_decoding(
        pair, [HeldOutPrompt(PROMPT, "chat")], frozenset({end}), 40, block_size=4
    )
    assert found.tokens == first + 1


def test_evaluation_stops_on_request(target, tiny_answer):
    """Ctrl-C in a long evaluation has to take effect within one prompt."""
    pair = Pair(target, scripted(tiny_answer, [0]))
    prompts = [HeldOutPrompt(PROMPT, "chat")] * 2
    assert evaluate_decoding(pair, prompts, NO_END, 2, 4, should_continue=lambda: False) is None


def test_anchors_count_prefixes_of_known_tokens():
    """A right token after a wrong one is never accepted; after the end there is no token."""
    sample = Sample((1, 2), (3, 4, 5))

    def predict(given, blocks):
        assert given is sample
        assert blocks.anchors.tolist() == [1, 2, 3]
        return np.array([[3, 9, 5], [4, 5, 7], [9, 9, 9]])

    found = evaluate_anchors(predict, [sample], block_size=4, per_sample=10, seed=0)
    assert found.anchors == 3
    assert found.tokens_per_round == 1 + (1 + 2 + 0) / 3
    assert found.accepted_by_position == (2 / 3, 1 / 2, 0)


def test_the_training_forward_proposes_the_tokens_of_decoding(target, tiny_answer, tmp_path):
    """A difference between the two forwards makes the evaluation at anchors meaningless."""
    draft = random_draft(target)
    features = FeatureStore(target, draft.target_layer_ids, 4, tmp_path, 0, "tiny")
    sample = Sample(PROMPT, tuple(tiny_answer[:24]))
    proposed = []

    def predict(given, blocks):
        proposed.append((blocks, block_predictor(draft, features, mx.float32)(given, blocks)))
        return proposed[-1][1]

    evaluate_anchors(predict, [sample], block_size=8, per_sample=4, seed=3)
    blocks, tokens = proposed[0]
    for anchor, row in zip(blocks.anchors, tokens, strict=True):
        context = draft.make_context()
        draft.extend(features(sample).hidden[:, :anchor].astype(mx.float32), 0, context)
        token = (*sample.prompt, *sample.answer)[anchor]
        assert draft.propose(token, 8, context).tokens[0].tolist() == row.tolist()


def test_eight_kinds_of_prompts_are_bundled():
    """Model cards are comparable only over the same prompts."""
    prompts = held_out_prompts(ByteTokenizer(), None)
    kinds = {prompt.kind for prompt in prompts}
    assert kinds == {
        *("chat", "code", "arithmetic", "lists", "translation", "summary", "story", "explanation")
    }
    assert len({prompt.ids for prompt in prompts}) == len(prompts) >= 24
    assert len(held_out_prompts(ByteTokenizer(), None, per_kind=1)) == 8


def test_held_out_prompts_are_in_no_benchmark():
    """A draft chosen by benchmark prompts looks better in the benchmark than it is."""
    from dflash_mlx.bench.suites import KINDS, bundled

    known = {prompt.text for prompt in bundled(KINDS, 100)}
    rendered = {
        ByteTokenizer().decode(prompt.ids) for prompt in held_out_prompts(ByteTokenizer(), None)
    }
    assert not [text for text in known for other in rendered if text in other]


@pytest.mark.parametrize("seed", [1, 2])
def test_anchors_are_drawn_by_the_seed(seed):
    """Two evaluations of one draft have to agree."""
    sample = Sample((1,), tuple(range(2, 200)))
    seen = []

    def predict(given, blocks):
        seen.append(blocks.anchors.tolist())
        return blocks.labels

    for _ in range(2):
        assert evaluate_anchors(predict, [sample], 4, 5, seed).tokens_per_round == 4
    assert seen[0] == seen[1]
