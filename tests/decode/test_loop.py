"""The loop: exact at every limit and block, one wait per round, nothing left open behind it."""

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.base
import mlx_lm.models.qwen3
import pytest

from dflash_mlx.decode import loop as decode_module
from dflash_mlx.decode.accept import match_rule
from dflash_mlx.decode.loop import StopDecision, catch_up
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import Block
from tests.tiny import (
    PROMPT,
    Rows,
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
    """Prompt and answer as one run of tokens."""
    return [*PROMPT, *tiny_answer]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("limit", [1, 2, 7, 60, 61])
def test_output_equals_plain_decoding_at_every_limit(target, text, script, limit):
    """Limits that are no multiple of the block used to overshoot, or to lose the last token."""
    pair = Pair(target, ScriptedDraft(text, SCRIPTS[script]))
    assert answer(pair, limit) == text[len(PROMPT) :][:limit]


@pytest.mark.parametrize("block", [2, 3, 5, 8])
def test_output_does_not_depend_on_the_block(target, text, block):
    """Text that changes with the block is not the target's text."""
    pair = Pair(target, random_draft(target))
    assert answer(pair, 60, policy=FixedBlock(block)) == text[len(PROMPT) :][:60]


def test_rounds_of_any_width_in_any_order_are_exact(target, text):
    """Plain steps between blocks once left the draft's context a row short."""
    pair = Pair(target, ScriptedDraft(text, SCRIPTS["mixed"]))
    written = answer(pair, 100, policy=Rows(8, 1, 1, 3, 8, 2, 1, 5))
    assert written == text[len(PROMPT) :][:100]


def test_without_a_draft_the_same_loop_decodes_plainly(target, tiny_answer):
    """A second loop for plain decoding is where fixes do not land."""
    assert answer(Pair(target), 64) == tiny_answer[:64]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("make", [lambda: Rows(8), lambda: FixedBlock(8), lambda: FixedBlock(1)])
def test_the_host_reads_once_per_round(target, text, script, make, monkeypatch):
    """Four waits a round instead of one cost a fifth of the speed."""
    reads, waits = [], []
    read_back = decode_module.read_back
    pair = Pair(target, ScriptedDraft(text, SCRIPTS[script]))
    cache, state = read_prompt(pair)
    monkeypatch.setattr(decode_module, "read_back", lambda v: reads.append(1) or read_back(v))
    monkeypatch.setattr(mx, "eval", lambda *arrays: waits.append(arrays))
    done = [r for r, _ in rounds(pair, cache, state, 60, policy=make())]
    assert len(reads) == len(done)
    assert len(waits) == sum(r.draft_s is not None for r in done)  # rounds that time the draft


def test_a_round_reports_what_it_did(target, text):
    """Counting the bonus token as accepted makes any draft look good."""
    pair = Pair(target, ScriptedDraft(text, [3, 0, 7]))
    cache, state = read_prompt(pair)
    done = [r for r, _ in rounds(pair, cache, state, 13, policy=Rows(8))]
    assert [(r.drafted, r.accepted, len(r.tokens)) for r in done] == [
        (7, 3, 4),
        (7, 0, 1),
        (7, 7, 8),
    ]


def test_end_token_inside_a_block_cuts_before_anything_is_committed(target, text):
    """A token behind the end of the answer must not enter the caches."""
    pair = Pair(target, oracle_draft(text))
    for position in range(1, 17):
        cache, state = read_prompt(pair)
        left = [position]

        def ending(tokens, left=left):
            if len(tokens) < left[0]:
                left[0] -= len(tokens)
                return StopDecision(len(tokens), False)
            return StopDecision(left[0], True)

        written = [t for r, _ in rounds(pair, cache, state, 60, ending=ending) for t in r.tokens]
        assert written == text[len(PROMPT) :][:position]
        assert cache.length == len(PROMPT) + position - 1


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_closed_loop_resumes_with_the_same_text(target, text, after):
    """An answer interrupted and continued once repeated or dropped a token."""
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
    """A processor that raised left a half-verified block in the cache."""
    calls = []

    def processor(tokens, logits):
        calls.append(1)
        if len(calls) == 12:
            raise ZeroDivisionError
        return logits

    pair = Pair(target, oracle_draft(text))
    cache, state = read_prompt(pair)
    rule = match_rule(loaded_pair(pair).sampling, 0, [processor])
    seen = []
    with pytest.raises(ZeroDivisionError):
        for done, state in rounds(pair, cache, state, 40, rule=rule):
            seen += done.tokens
    assert cache.length == len(PROMPT) - 1 + len(seen)
    rest = [t for r, _ in rounds(pair, cache, state, 40) for t in r.tokens]
    assert [*PROMPT, *seen, *rest] == text[: len(PROMPT) + 40]


@pytest.mark.parametrize("n_rows", [1, 7, 64])
def test_the_prompt_is_read_as_mlx_lm_reads_it(target, text, n_rows):
    """Another chunk grid sums in another order and can change the text."""
    pair = Pair(target, oracle_draft(text))
    assert answer(pair, 30, n_rows=n_rows) == plain(target.model, PROMPT, 30, n_rows)


def test_prefill_stops_between_chunks_and_goes_on_later(target, text):
    """A long prompt could not be cancelled, or was read again from the start."""
    pair = Pair(target, oracle_draft(text))
    cache = pair.make_cache()
    assert prefill(pair, cache, PROMPT, 8, lambda done, total: done < 16) is None
    assert cache.length == 16
    state = prefill(pair, cache, PROMPT, 8, lambda done, total: True)
    written = [t for r, _ in rounds(pair, cache, state, 20) for t in r.tokens]
    assert written == text[len(PROMPT) :][:20]


def test_the_draft_sees_every_committed_row_once_and_in_order(target, text):
    """A row given twice, or left out, costs acceptance without an error."""
    draft = ScriptedDraft(text, SCRIPTS["mixed"], target_layer_ids=(0, 2))
    pair = Pair(target, draft)
    cache, state = read_prompt(pair, n_rows=10)
    for _, state in rounds(pair, cache, state, 50, policy=Rows(8, 1, 4)):
        pass
    catch_up(pair, cache, state)
    seen = mx.concatenate(draft.seen, axis=1)
    whole = target.forward(mx.array([text[: cache.length]]), target.make_caches(), (0, 2)).features
    assert mx.array_equal(seen, whole)


def test_taps_are_outputs_of_the_layers_they_name(target):
    """Taps off by one layer cost a sixth of the accepted tokens, silently."""
    tokens = mx.array([list(PROMPT)])
    hidden = target.model.model.embed_tokens(tokens)
    expected = {}
    for index, layer in enumerate(target.model.model.layers):
        hidden = expected[index] = layer(hidden, "causal", None)
    features = target.forward(tokens, target.make_caches(), (2, 0)).features
    assert mx.array_equal(features, mx.concatenate([expected[2], expected[0]], axis=-1))


class BrokenDraft(ScriptedDraft):
    """Proposes what it is told, with logits that are not finite."""

    def propose(self, anchor, n_rows, context):
        block = super().propose(anchor, n_rows, context)
        return Block(block.tokens, mx.array(False))


@pytest.mark.parametrize(
    ("draft", "reason", "rounds_before"),
    [(BrokenDraft, "not finite", 1), (zero_draft, "none of the draft's tokens", 32)],
)
def test_a_broken_draft_stops_drafting_and_changes_no_text(
    target, text, draft, reason, rounds_before
):
    """A draft in half precision gave NaN and zero acceptance at half the speed, unnoticed."""
    made = draft(text, [0]) if draft is BrokenDraft else draft(text)
    pair, policy = Pair(target, made), FixedBlock(8)
    cache, state = read_prompt(pair)
    done = [r for r, _ in rounds(pair, cache, state, 60, policy=policy)]
    assert [r.drafted > 0 for r in done].count(True) == rounds_before
    assert reason in policy.disabled_reason
    assert [t for r in done for t in r.tokens] == text[len(PROMPT) :][:60]


def test_nothing_of_mlx_or_mlx_lm_is_replaced(target, text):
    """Patched classes make two models in one process share what they remember."""
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
    """A second draft used to read the taps of the first."""
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
