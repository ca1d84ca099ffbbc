"""Verification finds damaged output, and its numbers equal a direct computation."""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, load_tokenizer

from dflash_mlx.convert.check.divergence import divergence
from dflash_mlx.convert.check.tensor_errors import check_names, measure_errors
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.run import plan_conversion
from dflash_mlx.convert.sources.sample_text import TEXT
from dflash_mlx.errors import BadCheckpoint
from tests.convert.checkpoints import draft_folder, run, target_folder, weights_of
from tests.convert.test_trace import Held


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return target_folder(tmp_path_factory.mktemp("source") / "tiny", "llama", head_dim=16)


def test_errors_are_those_of_the_dequantized_weights(source, tmp_path):
    """The reported error must be the error of the weights that are loaded."""
    outcome = run(source, tmp_path / "out", bits=3, verify=True)
    before, after = weights_of(source), weights_of(tmp_path / "out")
    for error in outcome.checks[0].errors:
        path = error.name.removesuffix(".weight")
        if f"{path}.scales" not in after:
            assert error.relative == 0
            continue
        parts = [after[f"{path}.{part}"] for part in ("weight", "scales", "biases")]
        values = np.array(mx.dequantize(*parts, group_size=64, bits=3), dtype=np.float64)
        exact = np.array(before[error.name], dtype=np.float64)
        expected = np.sqrt(np.square(values - exact).sum() / np.square(exact).sum())
        assert error.relative == pytest.approx(expected, rel=1e-4)
        assert error.largest == pytest.approx(np.abs(values - exact).max(), rel=1e-4)


def test_divergence_equals_that_of_the_whole_models(source, tmp_path):
    """The divergence by layers and chunks must equal that of the whole models."""
    outcome = run(source, tmp_path / "out", bits=4, verify=True)
    found = outcome.checks[0].divergence
    tokens = load_tokenizer(source).encode(TEXT)[:256]
    logits = []
    for folder in (source, tmp_path / "out"):
        model, _ = load_model(folder)
        model.set_dtype(mx.float32)
        logits.append(model(mx.array([tokens]))[0].astype(mx.float32))
    logs = [part - mx.logsumexp(part, axis=-1, keepdims=True) for part in logits]
    kl = (mx.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1)
    same = (logits[0].argmax(axis=-1) == logits[1].argmax(axis=-1)).mean()
    assert found.n_tokens == len(tokens)
    assert found.mean_kl == pytest.approx(kl.mean().item(), rel=1e-2)
    assert found.top1_agreement == pytest.approx(same.item(), abs=0.02)


def test_chunks_of_the_vocabulary_are_one_distribution(monkeypatch):
    """Maximum and sum continue across chunks; an error appears only with several chunks."""
    monkeypatch.setattr(
        "dflash_mlx.convert.check.divergence.chunks", lambda rows: [(0, 3), (3, 50), (50, 97)]
    )
    heads = [mx.random.normal((97, 16)) * 2 for _ in range(2)]
    hidden = [mx.random.normal((5, 16)) for _ in range(2)]
    found = divergence(Held(heads[0]), Held(heads[1]), *hidden)
    logs = [
        h @ w.T - mx.logsumexp(h @ w.T, axis=-1, keepdims=True)
        for h, w in zip(hidden, heads, strict=True)
    ]
    kl = (mx.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1)
    assert found.mean_kl == pytest.approx(kl.mean().item(), rel=1e-4)
    assert found.largest_kl == pytest.approx(kl.max().item(), rel=1e-4)


def test_equal_heads_have_no_divergence():
    """A nonzero result for equal heads would hide small errors."""
    head, hidden = Held(mx.random.normal((50, 16))), mx.random.normal((4, 16))
    found = divergence(head, head, hidden, hidden)
    assert found.mean_kl < 1e-6
    assert found.top1_agreement == 1


def test_a_flipped_bit_is_found(tmp_path):
    """A failing disk returns other bytes than were written."""
    source = draft_folder(tmp_path / "source")
    run(source, tmp_path / "out", dequantize=True)
    job = plan_conversion(ConvertConfig(source=str(source), dequantize=True))[0]
    path = tmp_path / "out/model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BadCheckpoint, match="reads back differently"):
        measure_errors(job, check_names(job, tmp_path / "out"), lambda n_bytes: None)


def test_a_missing_tensor_is_found(tmp_path):
    """A missing tensor must fail the check."""
    source = draft_folder(tmp_path / "source")
    run(source, tmp_path / "out", bits=4)
    job = plan_conversion(ConvertConfig(source=str(source), bits=4))[0]
    weights = weights_of(tmp_path / "out")
    del weights["fc.scales"]
    mx.save_safetensors(str(tmp_path / "out/model.safetensors"), weights)
    with pytest.raises(BadCheckpoint, match=r"fc\.scales"):
        check_names(job, tmp_path / "out")


def test_the_report_contains_no_times(source, tmp_path):
    """Times in the report make equal conversions differ."""
    run(source, tmp_path / "out", bits=4, verify=True)
    report = json.loads((tmp_path / "out/conversion.json").read_text())
    check = report["models"]["."]["check"]
    assert check["divergence"]["n_tokens"] > 100
    assert check["errors"]["model.layers.0.mlp.up_proj.weight"]["relative"] > 0
    assert "seconds" not in check
