"""The decode loop: exact for every length and block size, one wait per round, no open rows left."""

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.base
import mlx_lm.models.qwen3
import pytest

from dflash_mlx.decode import loop as loop_module
from dflash_mlx.decode.accept import match_rule
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import DecodeState, StopDecision, update_context
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import Block
from tests.tiny import (
    PROMPT,
    BlockSizes,
    ScriptedDraft,
    answer,
    loaded_pair,
    oracle_draft,
    plain,
    random_draft,
    read_prompt,
    rounds,
    tiny_target,
    zero_draft,
)

SCRIPTS = {"oracle": [10**6], "zero": [0], "mixed": [0, 3, 7, 1, 0, 5, 2, 6, 4] * 40}


@pytest.fixture(scope="module")
def text(tiny_answer):
    """The tokens of prompt and answer."""
    return [*PROMPT, *tiny_answer]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 60, 61])
def test_output_equals_plain_decoding_for_every_length(target, text, script, max_tokens):
    """Lengths that are not a multiple of the block size gave a token too many or too few."""
    pair = Pair(target, ScriptedDraft(text, SCRIPTS[script]))
    assert answer(pair, max_tokens) == text[len(PROMPT) :][:max_tokens]


@pytest.mark.parametrize("block_size", [2, 3, 5, 8])
def test_output_does_not_depend_on_the_block_size(target, text, block_size):
    """Text that changes with the block size is not the target's text."""
    pair = Pair(target, random_draft(target))
    assert answer(pair, 60, policy=FixedBlock(block_size)) == text[len(PROMPT) :][:60]


def test_block_sizes_in_any_order_are_exact(target, text):
    """Plain steps between blocks left a row out of the draft's context."""
    pair = Pair(target, ScriptedDraft(text, SCRIPTS["mixed"]))
    written = answer(pair, 100, policy=BlockSizes(8, 1, 1, 3, 8, 2, 1, 5))
    assert written == text[len(PROMPT) :][:100]


def test_the_loop_decodes_without_a_draft(target, tiny_answer):
    """A second loop for plain decoding would miss fixes to the first."""
    assert answer(Pair(target), 64) == tiny_answer[:64]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("policy", [BlockSizes, FixedBlock])
@pytest.mark.parametrize("block_size", [1, 8])
def test_the_host_reads_once_per_round(target, text, script, policy, block_size, monkeypatch):
    """Four waits per round instead of one cost a fifth of the throughput."""
    reads, waits = [], []
    read_back = loop_module.read_back
    pair = Pair(target, ScriptedDraft(text, SCRIPTS[script]))
    cache, state = read_prompt(pair)
    monkeypatch.setattr(loop_module, "read_back", lambda v: reads.append(1) or read_back(v))
    monkeypatch.setattr(mx, "eval", lambda *arrays: waits.append(arrays))
    done = [r for r, _ in rounds(pair, cache, state, 60, policy=policy(block_size))]
    assert len(reads) == len(done)
    assert len(waits) == sum(r.draft_s is not None for r in done)  # timing the draft adds a wait


def test_a_round_reports_what_it_did(target, text):
    """Counting the bonus token as accepted overstates the acceptance rate."""
    pair = Pair(target, ScriptedDraft(text, [3, 0, 7]))
    cache, state = read_prompt(pair)
    done = [r for r, _ in rounds(pair, cache, state, 13, policy=BlockSizes(8))]
    assert [(r.drafted, r.accepted, len(r.tokens)) for r in done] == [
        (7, 3, 4),
        (7, 0, 1),
        (7, 7, 8),
    ]


def test_tokens_after_the_end_inside_a_block_are_not_committed(target, text):
    """Tokens after the end of the answer entered the caches."""
    pair = Pair(target, oracle_draft(text))
    for position in range(1, 17):
        cache, state = read_prompt(pair)
        left = [position]

        def stop_condition(tokens, left=left):
            if len(tokens) < left[0]:
                left[0] -= len(tokens)
                return StopDecision(len(tokens), False)
            return StopDecision(left[0], True)

        finished = rounds(pair, cache, state, 60, stop_condition=stop_condition)
        written = [t for r, _ in finished for t in r.tokens]
        assert written == text[len(PROMPT) :][:position]
        assert cache.length == len(PROMPT) + position - 1


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_closed_loop_resumes_with_the_same_text(target, text, after):
    """An interrupted and continued answer repeated or dropped a token."""
    pair = Pair(target, ScriptedDraft(text, [2, 0, 7, 4]))
    cache, state = read_prompt(pair)
    loop = rounds(pair, cache, state, 40)
    for _ in range(after):
        done, state = next(loop)
    loop.close()
    assert cache.length == len(state.history) - 1
    for _, state in rounds(pair, cache, state, 40):
        pass
    assert list(state.history) == text[: len(PROMPT) + 40]


def test_an_error_inside_a_round_leaves_committed_rows_only(target, text):
    """A processor that raised an error left uncommitted rows in the cache."""
    calls = []

    def processor(tokens, logits):
        calls.append(1)
        if len(calls) == 12:
            raise ZeroDivisionError
        return logits

    pair = Pair(target, oracle_draft(text))
    cache, state = read_prompt(pair)
    rule = match_rule(loaded_pair(pair).sampling, 0, [processor])
    written = []
    with pytest.raises(ZeroDivisionError):
        for done, state in rounds(pair, cache, state, 40, accept_rule=rule):
            written += done.tokens
    assert cache.length == len(PROMPT) - 1 + len(written)
    rest = [t for r, _ in rounds(pair, cache, state, 40) for t in r.tokens]
    assert [*PROMPT, *written, *rest] == text[: len(PROMPT) + 40]


@pytest.mark.parametrize("step_size", [1, 7, 64])
def test_prefill_uses_the_chunks_of_mlx_lm(target, text, step_size):
    """Other chunks sum in another order and can change the text."""
    pair = Pair(target, oracle_draft(text))
    expected = plain(target.model, PROMPT, 30, step_size)
    assert answer(pair, 30, prefill_step_size=step_size) == expected


def test_prefill_stops_between_chunks_and_continues_later(target, text):
    """A long prompt could not be cancelled, or was read again from its start."""
    pair = Pair(target, oracle_draft(text))
    cache = pair.make_cache()
    steps = prefill(pair, cache, PROMPT, 8)
    assert next(read for read in steps if read >= 16) == 16
    steps.close()
    assert cache.length == 16
    lengths = list(prefill(pair, cache, PROMPT, 8))
    assert (lengths[0], lengths[-1]) == (16, len(PROMPT) - 1)
    state = DecodeState(History(PROMPT))
    written = [t for r, _ in rounds(pair, cache, state, 20) for t in r.tokens]
    assert written == text[len(PROMPT) :][:20]


def test_the_draft_sees_every_committed_row_once_and_in_order(target, text):
    """A row that is repeated or missing lowers acceptance without an error."""
    draft = ScriptedDraft(text, SCRIPTS["mixed"], target_layer_ids=(0, 2))
    pair = Pair(target, draft)
    cache, state = read_prompt(pair, step_size=10)
    for _, state in rounds(pair, cache, state, 50, policy=BlockSizes(8, 1, 4)):
        pass
    update_context(pair, cache, state)
    extended = mx.concatenate(draft.extended, axis=1)
    whole = target.forward(mx.array([text[: cache.length]]), target.make_caches(), (0, 2)).features
    assert mx.array_equal(extended, whole)


def test_features_are_hidden_states_of_the_named_layers(target):
    """Hidden states of the neighbouring layer lowered the accepted tokens by a sixth."""
    tokens = mx.array([list(PROMPT)])
    hidden = target.model.model.embed_tokens(tokens)
    expected = {}
    for index, layer in enumerate(target.model.model.layers):
        hidden = expected[index] = layer(hidden, "causal", None)
    features = target.forward(tokens, target.make_caches(), (2, 0)).features
    assert mx.array_equal(features, mx.concatenate([expected[2], expected[0]], axis=-1))


class NotFiniteDraft(ScriptedDraft):
    """A scripted draft that reports logits that are not finite."""

    def propose(self, anchor, block_size, context):
        block = super().propose(anchor, block_size, context)
        return Block(block.tokens, mx.array(False))


@pytest.mark.parametrize(
    ("draft", "reason", "rounds_before"),
    [(NotFiniteDraft, "not finite", 1), (zero_draft, "none of the draft's tokens", 32)],
)
def test_a_useless_draft_is_disabled_and_the_text_is_unchanged(
    target, text, draft, reason, rounds_before
):
    """A draft in float16 returned NaN: no token was accepted, at half the throughput."""
    made = draft(text, [0]) if draft is NotFiniteDraft else draft(text)
    pair, policy = Pair(target, made), FixedBlock(8)
    cache, state = read_prompt(pair)
    done = [r for r, _ in rounds(pair, cache, state, 60, policy=policy)]
    assert [r.drafted > 0 for r in done].count(True) == rounds_before
    assert reason in policy.disabled_reason
    assert [t for r in done for t in r.tokens] == text[len(PROMPT) :][:60]


def test_no_class_or_function_of_mlx_or_mlx_lm_is_replaced(target, text):
    """Patched classes make two models in one process share state."""
    owned = {
        (owner, name): value
        for owner in (mx, mx.fast, nn, mlx_lm.models.base, mlx_lm.models.qwen3)
        for name, value in vars(owner).items()
    }
    calls = {kind: kind.__call__ for kind in (nn.Linear, nn.RMSNorm, mlx_lm.models.qwen3.Attention)}
    layers = list(target.model.model.layers)
    answer(Pair(target, random_draft(target)), 20)
    assert all(vars(owner)[name] is value for (owner, name), value in owned.items())
    assert all(kind.__call__ is call for kind, call in calls.items())
    assert all(a is b for a, b in zip(layers, target.model.model.layers, strict=True))


def test_two_pairs_live_in_one_process(target, text):
    """A second draft read the hidden states of the first one's target."""
    other = tiny_target("llama")
    first = Pair(target, random_draft(target))
    second = Pair(other, random_draft(other, target_layer_ids=(1,)))
    expected = plain(other.model, PROMPT, 40)
    caches = [read_prompt(first), read_prompt(second)]
    loops = [rounds(pair, *read, 40) for pair, read in zip((first, second), caches, strict=True)]
    written = [[], []]
    for (one, _), (two, _) in zip(*loops, strict=False):
        written[0] += one.tokens
        written[1] += two.tokens
    n = min(map(len, written))
    assert written[0][:n] == text[len(PROMPT) :][:n]
    assert written[1][:n] == expected[:n]
