"""The result of a run: a folder that everything else takes."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadRequest, DFlashError
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.models.draft.build import bind
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.pairs.manifest import trained_thinking
from dflash_mlx.train.beginning import new_draft
from dflash_mlx.train.curves import curves
from dflash_mlx.train.outcome import check_out, publish
from dflash_mlx.train.shape import Wishes, draft_shape

FACTS = {
    "target": {"name": "org/tiny", "revision": "0" * 40, "identity": "x", "family": "qwen3"},
    "init": None,
    "parameters": 12345,
    "thinking": False,
    "data": {
        "source": "self",
        "n_samples": 40,
        "n_held_out": 2,
        "answer_tokens": 900,
        "answers": "greedy",
        "dropped": "dropped 3 looping",
    },
    "recipe": {
        "steps": 4,
        "sequences": 4,
        "anchors": 8,
        "learning_rate": 6e-4,
        "weighting": "fixed",
        "decay": 4.0,
        "distillation": 0.5,
        "seed": 7,
    },
    "machine": "a chip, cpu",
    "computed_in": "float32",
    "made_with": {"dflash-mlx": "0.1.0", "mlx": "1"},
    "progress": {"step": 4},
    "finished": True,
}


def measurement(step, reached):
    """A line of history with both measurements."""
    return {
        "step": step,
        "tokens": 100 * step,
        "sequential": {
            "block": 8,
            "tokens": 60,
            "rounds": 40,
            "tokens_per_round": reached,
            "by_kind": {"chat": reached, "code": 1.25},
            "accepted_by_position": [0.4, 0.1],
            "accepted_lengths": {"0": 24, "1": 12, "2": 4},
        },
        "anchors": {"anchors": 64, "tokens_per_round": 2.0, "accepted_by_position": [0.5, 0.2]},
    }


def trained(step):
    """A line of history of one step."""
    return {
        "step": step,
        "tokens": 100 * step,
        "skipped": 0,
        "loss": 5.0 / step,
        "accepted": [0.3, 0.1],
        "tokens_per_round": 1.4,
        "learning_rate": 1e-3,
        "gradient": 1.0,
    }


HISTORY = [trained(1), trained(2), measurement(2, 1.625), trained(3), measurement(4, 1.5)]


@pytest.fixture(params=[{}, {"vocabulary": 40}, {"second": True}], ids=["v1", "reduced", "v2"])
def draft(request, target):
    """A draft of each kind, and its configuration."""
    wishes = Wishes(layers=1, **request.param)
    config = draft_shape(target.shape, {}, 10**6, 257, wishes)
    return bind(new_draft(read_draft_config(config), 1), target), config


def weights(draft):
    """All weights of a draft by name."""
    return dict(tree_flatten(draft.model.parameters()))


def test_the_result_loads_as_any_published_draft_does(draft, target, tmp_path):
    """What only the trainer can read is no draft."""
    bound, config = draft
    publish(tmp_path / "out", config, weights(bound), FACTS, HISTORY)
    loaded = load_draft(tmp_path / "out", target, compute_here())
    expected = weights(bound)
    for name, array in weights(loaded).items():
        stored = expected[name].astype(mx.bfloat16) if "d2t" not in name else expected[name]
        assert mx.array_equal(array, stored.astype(array.dtype)), name
    assert trained_thinking(tmp_path / "target", tmp_path / "out") is False


def test_the_card_says_what_was_reached_and_how(draft, tmp_path):
    """A draft of unknown origin is not used by anybody careful."""
    bound, config = draft
    publish(tmp_path / "my-draft", config, weights(bound), FACTS, HISTORY)
    card = (tmp_path / "my-draft/README.md").read_text()
    for said in (
        "base_model: org/tiny",
        "dflash-mlx chat --model org/tiny --draft my-draft",
        "self: 40 samples, 900 answer tokens; answers written by the target, greedy",
        "dropped 3 looping",
        "4 of 4 steps of 4 samples with up to 8 blocks",
        "| Seed | 7 |",
        "| Thinking | off |",
        "**1.62 tokens a round**",
        "| chat | 1.62 |",
        "| code | 1.25 |",
        "Over 64 anchors",
        "2.00, which flatters",
        "| 4 | 400 | 1.50 | 2.00 |",
    ):
        assert said in card, said
    record = json.loads((tmp_path / "my-draft/training.json").read_text())
    assert record["history"] == HISTORY


def test_a_result_of_training_is_replaced_and_nothing_else(draft, tmp_path):
    """A resumed run writes over its own earlier result; a user's model is not ours."""
    bound, config = draft
    out = tmp_path / "out"
    check_out(out, force=False)
    publish(out, config, weights(bound), FACTS, HISTORY)
    check_out(out, force=False)
    publish(out, config, weights(bound), {**FACTS, "machine": "another"}, HISTORY)
    assert "another" in (out / "README.md").read_text()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out"]
    (out / "training.json").unlink()
    with pytest.raises(BadRequest, match="replace it with --force"):
        check_out(out, force=False)
    check_out(out, force=True)
    (out / "config.json").unlink()
    with pytest.raises(BadRequest, match="--force replaces models only"):
        check_out(out, force=True)


def test_a_full_disk_leaves_the_earlier_result(draft, tmp_path, monkeypatch):
    """Half a result in place of a whole one is a loss."""
    bound, config = draft
    out = tmp_path / "out"
    publish(out, config, weights(bound), FACTS, HISTORY)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dflash_mlx.train.checkpoint.os.fsync", full)
    with pytest.raises(DFlashError, match="No space left"):
        publish(out, config, weights(bound), {**FACTS, "machine": "another"}, HISTORY)
    assert "another" not in (out / "README.md").read_text()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out"]


def test_the_page_of_curves_needs_nothing_else():
    """No script, no font, no network: it opens from a disk in ten years."""
    page = curves("out <b>", "facts & figures", HISTORY)
    for plot in ("Loss", "Tokens per round", "Accepted by position", "Learning rate"):
        assert f"<figcaption>{plot}" in page
    assert "out &lt;b&gt;" in page
    assert page.count("tokens learned from") == 3
    for outside in ("http", "<script", "@import", "url("):
        assert outside not in page
    assert "1.50 tokens a round over 40 rounds" in page


def test_a_long_history_is_averaged_and_not_sampled():
    """Ten thousand points are a black bar; every fiftieth of them is chance."""
    history = [{**trained(step), "loss": float(step % 2)} for step in range(1, 2001)]
    page = curves("x", "y", history)
    assert page.count("loss: ") <= 2 * 201
    assert ", 0.5</title>" in page


def test_a_page_without_history_says_so():
    """A run that was stopped at once."""
    assert "Nothing was logged yet" in curves("x", "y", [])
