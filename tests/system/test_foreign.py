"""Files of other authors: every failure of a reader is one line."""

import pytest

from dflash_mlx.errors import BadCheckpoint, BadRequest, UnsupportedModel
from dflash_mlx.system.foreign import QUOTED, quoted, reading

RAISED = [
    RecursionError("maximum recursion depth exceeded"),
    AssertionError(),
    ZeroDivisionError("division by zero"),
    OverflowError("too large"),
    AttributeError("'list' object has no attribute 'get'"),
    Exception("bare"),
    ModuleNotFoundError("No module named 'x'"),
    PermissionError(13, "Permission denied"),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_reader_raises_is_one_line_of_ours(raised):
    """A list of exception types at such a boundary was incomplete in nine places."""
    with pytest.raises(BadCheckpoint) as caught, reading("m/config.json", "the configuration"):
        raise raised
    assert str(caught.value).startswith("m/config.json: the configuration cannot be read (")
    assert str(caught.value).endswith("); fetch the model again")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("raised", [BadRequest("ours"), MemoryError(), KeyboardInterrupt()])
def test_our_own_errors_and_interrupts_pass(raised):
    """A wrapped Ctrl-C once looked like a damaged file."""
    with pytest.raises(type(raised)), reading("m", "the tokenizer"):
        raise raised


def test_the_error_type_and_the_remedy_are_the_callers():
    """Not every file belongs to a model."""
    with (
        pytest.raises(UnsupportedModel, match=r"; delete it$"),
        reading("f", "it", "delete it", UnsupportedModel),
    ):
        raise ValueError("x")


def test_long_values_and_messages_are_cut():
    """A value of 200,000 characters once filled the terminal."""
    assert len(quoted("x" * 200_000)) < QUOTED + 40
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert quoted(deep) == "a list"
    with pytest.raises(BadCheckpoint) as caught, reading("f", "it"):
        raise ValueError("y" * 5000)
    assert len(str(caught.value)) < QUOTED + 100
