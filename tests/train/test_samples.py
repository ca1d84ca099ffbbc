"""Samples: storage, filter and held-out split."""

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.train.data.samples import (
    Sample,
    SampleFilter,
    SampleLimits,
    Samples,
    is_looping,
    split_held_out,
)


def numbered(count):
    """Return `count` different samples."""
    return [Sample((1, number), (2, number, 3)) for number in range(count)]


def test_samples_are_stored_unchanged():
    """One wrong offset in the flat storage mixes neighbouring samples."""
    given = [Sample((1, 2), (3,), "a"), Sample((), (4, 5)), Sample((6,), ())]
    stored = Samples(given)
    assert list(stored) == given
    assert stored[-1] == given[-1]
    assert list(stored[1:]) == given[1:]
    assert (stored.answer_tokens, stored.n_tokens) == (3, 6)
    with pytest.raises(IndexError):
        stored[3]


def test_dropped_samples_are_counted_by_reason():
    """Without counts, a broken source goes unnoticed."""
    sample_filter = SampleFilter(SampleLimits(vocab_size=100, max_seq_length=10, mask_token=99))
    accepted = [
        sample_filter.accept(sample)
        for sample in (
            Sample((1, 2), (3, 4)),
            Sample((1, 2), (3, 4)),
            Sample((), (3, 4)),
            Sample((1,), (3,)),
            Sample(tuple(range(9)), (1, 2)),
            Sample((1,), (99, 3)),
            Sample((5,), tuple(range(20))),
        )
    ]
    assert accepted[0] == Sample((1, 2), (3, 4))
    assert accepted[-1] == Sample((5,), tuple(range(9)))
    assert accepted[1:-1] == [None] * 5
    assert sample_filter.truncated == 1
    assert sample_filter.summary() == (
        "dropped 1 repeated, 1 too long, 1 with the mask token, 1 without a prompt, "
        "1 without an answer; truncated 1"
    )


@pytest.mark.parametrize("token", [100, -1])
def test_ids_of_another_tokenizer_are_refused(token):
    """A draft trained on them for hours learns noise."""
    sample_filter = SampleFilter(SampleLimits(vocab_size=100, max_seq_length=10))
    with pytest.raises(BadRequest, match=f"ids.json contains token id {token} and this target"):
        sample_filter.accept(Sample((1,), (2, token)), "ids.json")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([7] * 100, True),
        ([1, 2, 3] * 40, True),
        ([9, 9, 9, *([1, 2, 3] * 30)], True),
        (list(range(100)), False),
        ([1, 2, 3] * 10, False),
        ([*([1, 2, 3] * 40), *range(60)], False),
    ],
)
def test_a_loop_is_detected_at_the_end_of_an_answer(answer, expected):
    """The greedy answers of small targets often loop and would fill the corpus."""
    assert is_looping(answer) is expected


def test_the_held_out_split_does_not_depend_on_other_samples():
    """A corpus that grows between two runs must not train on held-out samples."""
    few, many = numbered(400), numbered(2000)
    held_of_few, held_of_many = set(split_held_out(few)[1]), set(split_held_out(many[::-1])[1])
    assert held_of_few == held_of_many & set(few)
    assert 15 <= len(held_of_many) <= 80  # 2% of 2000; false alarm below 1e-6


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_small_corpus_has_both_parts(count):
    """Two samples are enough: one to train on, one for evaluation."""
    trained, held = split_held_out(numbered(count))
    assert len(trained) >= 1
    assert len(held) >= 1
    assert {*trained, *held} == set(numbered(count))


def test_one_sample_is_too_few():
    """There would be no sample for evaluation."""
    with pytest.raises(BadRequest, match="the data has 1 usable samples"):
        split_held_out(numbered(1))
