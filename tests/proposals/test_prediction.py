"""A predicted answer: proposed from its start, and found again after a difference."""

from dflash_mlx.proposals.prediction import Prediction


def test_the_prediction_is_proposed_from_its_start():
    """Nothing of the answer is known yet, so no match can be required."""
    source = Prediction([1, 2, 3, 4, 5])
    assert source.match_length > 0
    assert source.propose(3) == [1, 2, 3]
    source.extend([1, 2])
    assert source.propose(9) == [3, 4, 5]


def test_a_difference_stops_proposals_until_tokens_agree_again():
    """One changed word made the rest of a predicted file useless."""
    predicted = list(range(20))
    source = Prediction(predicted)
    source.extend([0, 1, 99])
    assert (source.match_length, source.propose(4)) == (0, [])
    source.extend([3, 4, 5])
    assert source.propose(4) == []
    assert source.next_match_length > 0
    source.extend([6])
    assert source.propose(4) == [7, 8, 9, 10]


def test_left_out_lines_are_skipped():
    """After a deletion the answer continues further on in the prediction."""
    line = [7, 7, 7, 7]
    source = Prediction([*line, 1, 2, *line, 3, 4, *line, 5, 6])
    source.extend([*line, 1, 2, *line, 3, 9, *line])
    assert source.propose(2) == [5, 6]


def test_a_repetition_returns_to_an_earlier_place():
    """A repeated paragraph occurs only before the current place."""
    source = Prediction([1, 2, 3, 4, 5, 6])
    source.extend([1, 2, 3, 4, 5, 6])
    assert source.propose(4) == []
    source.extend([9, 1, 2, 3, 4])
    assert source.propose(4) == [5, 6]


def test_short_and_empty_predictions_are_harmless():
    """A prediction shorter than the resync run has no place to continue from."""
    for predicted in ([], [1], [1, 2, 3]):
        source = Prediction(predicted)
        source.extend([8, 9, 8, 9, 8])
        assert source.propose(4) == []
