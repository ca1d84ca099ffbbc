"""Features equal the target's output, from disk and computed again."""

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.features import FeatureStore
from tests.tiny import PROMPT, tiny_target

SAMPLES = [Sample(PROMPT[:9], PROMPT[9:]), Sample(PROMPT[:3], PROMPT[3:20])]
TARGET_LAYERS = (0, 2)


def store(folder, max_bytes=10**9, identity="tiny", **options):
    target = tiny_target(**options)
    return FeatureStore(target, TARGET_LAYERS, 4, folder, max_bytes, identity)


def test_features_equal_one_forward_over_the_whole_text(tmp_path):
    """Hidden states of another layer or row train a useless draft."""
    made = store(tmp_path)(SAMPLES[0])
    target = tiny_target()
    caches = target.make_caches()
    output = target.forward(mx.array([PROMPT]), caches, TARGET_LAYERS)
    assert mx.array_equal(made.hidden, output.features.astype(mx.bfloat16))
    probs = mx.softmax(target.logits(output.hidden)[0, 8:], axis=-1)
    best = np.argsort(np.array(probs), axis=-1)[:, -4:]
    assert made.teacher.shape == (len(PROMPT) - 8, 4)
    assert np.array_equal(np.sort(np.array(made.teacher)), np.sort(best))
    taken = mx.take_along_axis(probs, made.teacher, axis=-1)
    assert mx.allclose(made.probabilities, taken, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_the_byte_budget_does_not_change_the_features(tmp_path, max_bytes):
    """A run that mixes rounded and exact features cannot be repeated."""
    features = store(tmp_path, max_bytes)
    first, again = features(SAMPLES[1]), features(SAMPLES[1])
    assert (len(list(tmp_path.iterdir())) == 1) == bool(max_bytes)
    for one, other in zip(first, again, strict=True):
        assert one.dtype == other.dtype and mx.array_equal(one, other)


def test_a_full_store_keeps_its_first_entries(tmp_path):
    """Evicting the oldest entry misses on every sample of every later epoch."""
    features = store(tmp_path)
    features(SAMPLES[0])
    size = next(tmp_path.iterdir()).stat().st_size
    small = store(tmp_path, max_bytes=size + 10)
    small(SAMPLES[1])
    assert len(list(tmp_path.iterdir())) == 1


def test_another_targets_features_are_not_read(tmp_path):
    """Features of another model train the wrong draft."""
    store(tmp_path)(SAMPLES[0])
    other = store(tmp_path, identity="another", num_hidden_layers=3)
    other(SAMPLES[0])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    """Features can be computed again; hours of training cannot."""
    features = store(tmp_path)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_mlx.train.loop.features.os.replace", full)
    made = features(SAMPLES[0])
    assert made.hidden.shape[1] == len(PROMPT)
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
