"""Copies from the context and predicted answers through the engine."""

import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.decode.policy import FixedBlock
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.resolved_request import resolve_request
from dflash_mlx.engine.text_proposals import TextProposals
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs.pairing import choose
from tests.tiny import loaded_pair, random_draft, tiny_target

PLAIN = GenerationConfig(max_tokens=100, block_size=1)


@pytest.fixture(scope="module", params=["copies only", "with a draft"])
def engine(request):
    worker = Worker("tiny")

    def make():
        target = tiny_target("qwen3")
        draft = random_draft(target) if request.param == "with a draft" else None
        return loaded_pair(Pair(target, draft), copies=True)

    engine = Engine(worker.run(make), worker)
    yield engine
    engine.close()


def test_answers_equal_plain_decoding(engine):
    """Draft tokens from text may only change the number of rounds."""
    expected = engine.generate("Hello there", PLAIN)
    assert expected.stats.rounds == 100
    for prediction in (None, expected.text, expected.text[40:], "something else entirely"):
        config = GenerationConfig(max_tokens=100, prediction=prediction)
        got = engine.generate("Hello there", config)
        assert (got.text, got.tokens) == (expected.text, expected.tokens)


def test_statistics_are_separate_for_each_source(engine):
    """Accepted copies counted as the draft's own made a bad draft look good."""
    expected = engine.generate("Hello there", PLAIN)
    config = GenerationConfig(max_tokens=100, prediction=expected.text, copies=False)
    stats = engine.generate("Hello there", config).stats
    assert stats.rounds < 100
    prediction = stats.sources["prediction"]
    assert 0 < prediction.accepted <= prediction.drafted
    assert prediction.rounds <= stats.rounds
    assert stats.accepted == sum(source.accepted for source in stats.sources.values())
    drafted = stats.sources.get("draft")
    assert sum(stats.accepted_lengths.values()) == (drafted.rounds if drafted else 0)


def test_the_index_of_a_conversation_is_extended():
    """Indexing the whole context again in every turn takes 8 us per token."""
    proposals, options = TextProposals(), {"predicted": None, "max_block_size": 32}
    first = proposals.policy([1, 2, 3], FixedBlock(1), copies=True, **options)
    proposals.keep_index(first)
    second = proposals.policy([1, 2, 3, 4], FixedBlock(1), copies=True, **options)
    assert second.sources[0] is first.sources[0] and len(second.sources[0]) == 4
    proposals.keep_index(second)
    other = proposals.policy([1, 9], FixedBlock(1), copies=True, **options)
    assert other.sources[0] is not first.sources[0]


def test_copies_follow_the_pair_and_the_request(target):
    """`--draft copy` must not depend on every caller passing the option again."""
    assert choose("smollm2-135m", "copy").copies and choose("smollm2-135m", "copy").draft is None
    assert not choose("smollm2-135m", "none").copies
    for copies, asked, used in ((True, None, True), (True, False, False), (False, True, True)):
        loaded = loaded_pair(Pair(target), copies=copies)
        request = resolve_request(loaded, GenerationConfig(copies=asked))
        assert (request.copies, request.block_size) == (used, 32 if used else 1)
    loaded = loaded_pair(Pair(target))
    assert resolve_request(loaded, GenerationConfig(copies=True, block_size=6)).block_size == 6


@pytest.mark.parametrize("options", [{"copies": True}, {"prediction": "text"}])
def test_copies_with_speculation_disabled_are_refused(target, options):
    """An option without effect looks like one that does not help."""
    with pytest.raises(BadRequest, match="block_size is 1, which disables"):
        resolve_request(loaded_pair(Pair(target)), GenerationConfig(block_size=1, **options))


def test_an_empty_prediction_is_refused():
    """It is a template without a value, as a rule."""
    with pytest.raises(BadRequest, match="prediction is ''"):
        GenerationConfig(prediction="")
