"""Defaults of `generation_config.json`: used, corrected, or left out with a notice."""

import json

import pytest

from dflash_mlx.config import SamplingConfig
from dflash_mlx.loading.generation import FILE, generation_defaults

DEFAULT = SamplingConfig(temperature=1.0)


def defaults(folder, generation, *configs):
    text = generation if isinstance(generation, str) else json.dumps(generation)
    (folder / FILE).write_text(text)
    return generation_defaults(folder, *configs)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, SamplingConfig()),
        ({"temperature": 0.6}, SamplingConfig()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
            SamplingConfig(temperature=0.6, top_k=20, top_p=0.95),
        ),
        ({"do_sample": True}, DEFAULT),
        ({"do_sample": True, "top_k": 50.0}, SamplingConfig(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": -1}, DEFAULT),
        ({"do_sample": True, "temperature": 0}, SamplingConfig()),
    ],
)
def test_sampling_defaults_come_from_the_model(tmp_path, generation, expected):
    """Other sampling defaults than the model's make its answers worse."""
    found = defaults(tmp_path, generation)
    assert found.sampling == expected
    assert found.notices == ()


@pytest.mark.parametrize(
    ("values", "expected", "notice"),
    [
        ({"temperature": 1e-06, "top_k": 1}, SamplingConfig(), "temperature is 1e-06"),
        ({"temperature": -1}, DEFAULT, "temperature is -1"),
        ({"temperature": float("nan")}, DEFAULT, "temperature is nan"),
        ({"temperature": "hot"}, DEFAULT, "temperature is 'hot'"),
        ({"top_p": 1.5}, DEFAULT, "top_p is 1.5"),
        ({"top_p": 0}, DEFAULT, "top_p is 0"),
        ({"top_p": [0.9]}, DEFAULT, r"top_p is \[0.9\]"),
        ({"top_k": -5}, DEFAULT, "top_k is -5"),
        ({"top_k": True}, DEFAULT, "top_k is True"),
        ({"min_p": 2}, DEFAULT, "min_p is 2"),
        ({"repetition_penalty": 0}, DEFAULT, "repetition_penalty is 0"),
        ({"repetition_penalty": {}}, DEFAULT, "repetition_penalty is {}"),
    ],
)
def test_a_value_out_of_range_is_left_out_with_a_notice(tmp_path, values, expected, notice):
    """Published fine-tunes with a temperature of 1e-06 could not be loaded at all."""
    found = defaults(tmp_path, {"do_sample": True, **values})
    assert found.sampling == expected
    (line,) = found.notices
    assert line.startswith(f"{FILE}: ")
    assert notice.replace("\\", "") in line


@pytest.mark.parametrize("text", ["[]", "3", "{", "[" * 200_000, "\x00"])
def test_a_damaged_file_is_left_out_with_a_notice(tmp_path, text):
    """A list instead of a table ended in AttributeError."""
    found = defaults(tmp_path, text, {"eos_token_id": 7})
    assert found.sampling == SamplingConfig()
    assert found.eos_token_ids == (7,)
    assert len(found.notices) == 1
    assert len(found.notices[0]) < 600


def test_a_folder_in_place_of_the_file_is_left_out_with_a_notice(tmp_path):
    """mlx-lm reads the file too, and raised IsADirectoryError."""
    (tmp_path / FILE).mkdir()
    assert len(generation_defaults(tmp_path).notices) == 1


@pytest.mark.parametrize(
    ("stated", "ids", "n_notices"),
    [
        (None, (), 0),
        (5, (5,), 0),
        ([9, 5], (5, 9), 0),
        ([], (), 0),
        (-1, (), 0),
        (2.5, (), 1),
        ([[1]], (), 1),
        (["a", 1], (1,), 1),
        ({"a": 1}, (), 1),
        (True, (), 1),
    ],
)
def test_end_tokens_are_whole_numbers(tmp_path, stated, ids, n_notices):
    """Nested lists and texts ended in TypeError."""
    found = defaults(tmp_path, {"eos_token_id": stated})
    assert (found.eos_token_ids, len(found.notices)) == (ids, n_notices)


def test_end_tokens_of_all_files_count(tmp_path):
    """An answer that ended with the token of the other file continued to the limit."""
    found = defaults(tmp_path, {"eos_token_id": [3]}, {"eos_token_id": 1}, {"eos_token_id": 2})
    assert found.eos_token_ids == (1, 2, 3)
