"""Features are the target's, whether they come from the disk or are made again."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.features import FeatureStore
from dflash_mlx.train.samples import Sample
from tests.tiny import PROMPT, tiny_target

SAMPLES = [Sample(PROMPT[:9], PROMPT[9:]), Sample(PROMPT[:3], PROMPT[3:20])]
TAPS = (0, 2)


def store(folder, max_bytes=10**9, identity="tiny", **options):
    target = tiny_target(**options)
    return FeatureStore(target, TAPS, 4, folder, max_bytes, identity)


def test_features_are_what_the_target_gives_behind_the_whole_text(tmp_path):
    """Taps of another layer or row train a draft for another target."""
    made = store(tmp_path)(SAMPLES[0])
    target = tiny_target()
    caches = target.make_caches()
    walked = target.forward(mx.array([PROMPT]), caches, TAPS)
    assert mx.array_equal(made.taps, walked.features.astype(mx.bfloat16))
    probs = mx.softmax(target.logits(walked.hidden)[0, 8:], axis=-1)
    best = np.argsort(np.array(probs), axis=-1)[:, -4:]
    assert made.teacher.shape == (len(PROMPT) - 8, 4)
    assert np.array_equal(np.sort(np.array(made.teacher)), np.sort(best))
    taken = mx.take_along_axis(probs, made.teacher, axis=-1)
    assert mx.allclose(made.shares, taken, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_a_budget_changes_time_and_nothing_else(tmp_path, max_bytes):
    """A run that trains on rounded features once and exact ones later cannot be repeated."""
    kept = store(tmp_path, max_bytes)
    first, again = kept(SAMPLES[1]), kept(SAMPLES[1])
    assert (len(list(tmp_path.iterdir())) == 1) == bool(max_bytes)
    for one, other in zip(first, again, strict=True):
        assert one.dtype == other.dtype and mx.array_equal(one, other)


def test_what_came_first_stays_when_the_budget_is_full(tmp_path):
    """Dropping the oldest would miss on every sample of every later epoch."""
    kept = store(tmp_path)
    kept(SAMPLES[0])
    size = next(tmp_path.iterdir()).stat().st_size
    small = store(tmp_path, max_bytes=size + 10)
    small(SAMPLES[1])
    assert len(list(tmp_path.iterdir())) == 1


def test_another_targets_features_are_not_read(tmp_path):
    """Files of the model before, read by the next, would train the wrong draft."""
    store(tmp_path)(SAMPLES[0])
    other = store(tmp_path, identity="another", num_hidden_layers=3)
    other(SAMPLES[0])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_costs_time_not_the_run(tmp_path, monkeypatch, caplog):
    """Hours of training must not end because a cache could not grow."""
    kept = store(tmp_path)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_mlx.train.features.os.replace", full)
    made = kept(SAMPLES[0])
    assert made.taps.shape[1] == len(PROMPT)
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
