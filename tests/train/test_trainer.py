"""Training steps: resume, frozen weights, NaN and checkpoints."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.system import atomic
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.features import FeatureStore
from dflash_mlx.train.loop.recipe import Recipe
from dflash_mlx.train.loop.trainer import make_optimizer, train
from tests.tiny import PROMPT, random_draft, selecting_draft, tiny_target

SAMPLES = [Sample(PROMPT[:9], PROMPT[9:]), Sample(PROMPT[:5], PROMPT[5:30])]
RECIPE = Recipe(
    steps=4,
    samples_per_step=2,
    anchors=6,
    learning_rate=1e-2,
    reduced_head_share=0.5,
    teacher_top_k=4,
)


def run(folder, recipe=RECIPE, draft=None, on_step=lambda report: "continue", samples=SAMPLES):
    """Train a tiny draft in `folder`; return it and its counts."""
    draft = draft or random_draft(tiny_target())
    store = FeatureStore(
        draft.target, draft.target_layer_ids, 4, folder / "features", 10**9, "tiny"
    )
    counts = train(draft, samples, store, recipe, folder / "checkpoint.safetensors", on_step)
    return draft, counts


def weights(draft):
    return dict(tree_flatten(draft.model.parameters()))


def same(one, other):
    return all(mx.array_equal(array, weights(other)[name]) for name, array in weights(one).items())


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_is_bitwise_equal_to_an_uninterrupted_one(tmp_path, stop):
    """New moments or other samples after a resume gave other weights."""
    uninterrupted, _ = run(tmp_path / "a")
    run(tmp_path / "b", on_step=lambda report: "stop" if report.counts.step == stop else "continue")
    resume_config, counts = run(tmp_path / "b")
    assert counts.step == 4
    assert same(uninterrupted, resume_config)
    again, _ = run(tmp_path / "b")
    assert same(uninterrupted, again)


def test_only_the_drafts_weights_change(tmp_path):
    """Embedding and head belong to the target."""
    draft = random_draft(tiny_target())
    before = dict(tree_flatten(draft.target.model.parameters()))
    own = {name: mx.array(array) for name, array in weights(draft).items()}
    run(tmp_path, draft=draft)
    after = dict(tree_flatten(draft.target.model.parameters()))
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    assert all(not mx.array_equal(own[name], array) for name, array in weights(draft).items())


def test_a_reduced_vocabulary_keeps_its_head_and_map(tmp_path):
    """The head consists of rows of the target's head and stays frozen."""
    draft = random_draft(tiny_target())
    config = replace(draft.model.config, draft_vocab_size=100)
    from dflash_mlx.models.draft.build import bind, draft_model

    model = draft_model(config, {"lm_head.weight"})
    model.d2t = mx.array(np.arange(100), mx.int32)
    head = mx.array(model.lm_head.weight)
    reduced, _ = run(tmp_path, draft=bind(model, draft.target))
    assert mx.array_equal(reduced.model.lm_head.weight, head)
    assert reduced.model.d2t.dtype == mx.int32
    assert mx.array_equal(reduced.model.d2t, mx.array(np.arange(100), mx.int32))


def test_a_selector_is_trained(tmp_path):
    """Convolutions, codebooks and projection of DFlash 2 get a gradient."""
    draft = selecting_draft(tiny_target())
    own = {name: mx.array(array) for name, array in weights(draft).items()}
    run(tmp_path, draft=draft)
    unchanged = [name for name, array in weights(draft).items() if mx.array_equal(own[name], array)]
    assert unchanged == []


def test_a_sample_with_nan_is_skipped_and_counted(tmp_path):
    """One bad sample must not turn all weights into NaN."""
    draft = random_draft(tiny_target())
    store = FeatureStore(
        draft.target, draft.target_layer_ids, 4, tmp_path / "features", 10**9, "tiny"
    )

    def features(sample):
        made = store(sample)
        return made._replace(hidden=made.hidden * mx.nan) if sample is SAMPLES[1] else made

    counts = train(
        draft, SAMPLES, features, RECIPE, tmp_path / "c.safetensors", lambda report: "continue"
    )
    assert counts.skipped == 4
    assert all(mx.isfinite(array).all() for array in weights(draft).values())


def test_a_loss_that_stays_nan_ends_the_run(tmp_path):
    """More steps would waste hours."""
    draft = random_draft(tiny_target())
    draft.model.norm.weight = draft.model.norm.weight * mx.nan
    with pytest.raises(DFlashError, match=r"NaN for 20 samples in a row at step 10.*checkpoint"):
        run(tmp_path, recipe=replace(RECIPE, steps=50), draft=draft)


def test_a_failed_write_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    """A full disk must not destroy the last checkpoint."""
    run(tmp_path, on_step=lambda report: "stop")
    file = tmp_path / "checkpoint.safetensors"
    before = file.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(DFlashError, match=r"cannot be written.*is unchanged.*--resume"):
        run(tmp_path)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_checkpoint_of_another_draft_is_refused(tmp_path):
    """Its weights have other shapes, or the same shapes and another meaning."""
    run(tmp_path)
    wider = random_draft(tiny_target(), intermediate_size=64)
    with pytest.raises(DFlashError, match="another draft"):
        run(tmp_path, draft=wider, recipe=replace(RECIPE, steps=8))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    """A damaged file must not start the training again without notice."""
    (tmp_path / "checkpoint.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BadCheckpoint, match=r"checkpoint\.safetensors: the checkpoint cannot"):
        run(tmp_path)


def test_every_epoch_has_all_samples_in_a_new_order(tmp_path):
    """Sampling with replacement leaves out a third of the data in every epoch."""
    samples = [Sample(PROMPT[: 5 + i], PROMPT[5 + i : 20 + i]) for i in range(6)]
    seen = []
    draft = random_draft(tiny_target())
    store = FeatureStore(
        draft.target, draft.target_layer_ids, 4, tmp_path / "features", 10**9, "tiny"
    )

    def features(sample):
        seen.append(samples.index(sample))
        return store(sample)

    recipe = replace(RECIPE, steps=6)
    train(draft, samples, features, recipe, tmp_path / "c.safetensors", lambda report: "continue")
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert seen[:6] != seen[6:]


def test_the_learning_rate_warms_up_and_decays():
    """Without warm-up Adam's first steps are its largest; without decay it does not converge."""
    recipe = Recipe(steps=100, learning_rate=1.0, warmup=0.1, final_rate=0.1)
    optimizer = make_optimizer(recipe)
    rates = []
    for step in range(100):
        optimizer.state["step"] = mx.array(step, mx.uint64)
        rates.append(float(optimizer._schedulers["learning_rate"](optimizer.step)))
    assert rates[0] < 0.2 and max(rates) == pytest.approx(1.0, abs=0.02)
    assert np.argmax(rates) in range(9, 12)
    assert rates[-1] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"learning_rate": 0}, {"distillation": 1.5}, {"anchors": 0}]
)
def test_invalid_recipes_are_refused(wrong):
    """The message has the name and the value."""
    with pytest.raises(BadRequest, match=f"{next(iter(wrong))} is {next(iter(wrong.values()))}"):
        Recipe(**{"steps": 5, **wrong})
