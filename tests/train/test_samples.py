"""What is learned from, what is left out, and what is held back."""

import pytest

from dflash_mlx.errors import BadRequest
from dflash_mlx.train.samples import Limits, Sample, Samples, Sieve, loops, split


def numbered(count):
    """So many different samples."""
    return [Sample((1, number), (2, number, 3)) for number in range(count)]


def test_samples_come_back_as_they_went_in():
    """Flat storage mixes neighbours up if one offset is wrong."""
    given = [Sample((1, 2), (3,), "a"), Sample((), (4, 5)), Sample((6,), ())]
    kept = Samples(given)
    assert list(kept) == given
    assert kept[-1] == given[-1]
    assert list(kept[1:]) == given[1:]
    assert (kept.answer_tokens, kept.n_tokens) == (3, 6)
    with pytest.raises(IndexError):
        kept[3]


def test_useless_samples_are_counted_by_reason():
    """A corpus that shrinks without a word hides a broken source."""
    sieve = Sieve(Limits(vocab_size=100, max_rows=10, mask=99))
    kept = [
        sieve.keep(sample)
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
    assert kept[0] == Sample((1, 2), (3, 4))
    assert kept[-1] == Sample((5,), tuple(range(9)))
    assert kept[1:-1] == [None] * 5
    assert sieve.cut == 1
    assert sieve.described() == (
        "dropped 1 holding the mask token, 1 repeated, 1 too long, 1 without a prompt, "
        "1 without an answer; cut 1 too long"
    )


@pytest.mark.parametrize("token", [100, -1])
def test_ids_of_another_tokenizer_are_refused(token):
    """Trained on them, a draft learns noise for hours."""
    sieve = Sieve(Limits(vocab_size=100, max_rows=10))
    with pytest.raises(BadRequest, match=f"ids.json holds token {token} and this target has ids"):
        sieve.keep(Sample((1,), (2, token)), "ids.json")


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
def test_a_loop_is_known_at_its_end(answer, expected):
    """A small target that says one thing for ever would fill the corpus with it."""
    assert loops(answer) is expected


def test_what_is_held_out_does_not_depend_on_the_rest():
    """A corpus that grows between two runs must not train on what it was measured with."""
    few, many = numbered(400), numbered(2000)
    held_of_few, held_of_many = set(split(few)[1]), set(split(many[::-1])[1])
    assert held_of_few == held_of_many & set(few)
    assert 15 <= len(held_of_many) <= 80  # 2% of 2000; false alarm below 1e-6


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_small_corpus_still_has_both_sides(count):
    """Two samples: one to learn from, one to measure with."""
    trained, held = split(numbered(count))
    assert len(trained) >= 1
    assert len(held) >= 1
    assert {*trained, *held} == set(numbered(count))


def test_one_sample_is_too_few():
    """Nothing would be left to measure with."""
    with pytest.raises(BadRequest, match="there are 1 samples"):
        split(numbered(1))
