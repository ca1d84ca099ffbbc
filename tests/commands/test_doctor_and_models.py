"""`doctor` and `models`: printed findings and JSON."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest

from dflash_mlx.commands import main
from dflash_mlx.doctor import checkup
from dflash_mlx.doctor.checkup import Finding
from dflash_mlx.hub.resolve import find_packaged
from dflash_mlx.kernels.pair_kernels import install_kernels
from dflash_mlx.pairs import registry
from dflash_mlx.system.chips import read_mac
from dflash_mlx.system.machine import this_machine
from tests.metal.fake_chip import FakeChip
from tests.train.tiny_folder import tiny_folder


def run(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def embedded():
    card = registry.find("smollm2-135m")
    return all(find_packaged(name) for name in (card.target, card.draft))


def test_models_lists_every_pair(home, capsys):
    """Users learn nicknames only from this list."""
    out = run(capsys, "models")
    for card in registry.cards():
        assert card.nickname in out and card.target in out and card.draft in out


def test_models_as_json(home, capsys):
    """Tools choose a model by size and by what is downloaded."""
    found = json.loads(run(capsys, "models", "--json"))
    assert {pair["nickname"] for pair in found["pairs"]} == {
        card.nickname for card in registry.cards()
    }
    assert found["pairs"][0]["target"].keys() == {"reference", "path", "bytes", "revision"}
    assert found["converted"] == found["cached"] == []


@pytest.mark.parametrize(
    ("gigabytes", "small", "large"), [(9, "4bit", "no"), (400, "yes", "yes"), (None, None, None)]
)
def test_models_are_sorted_by_memory(home, capsys, monkeypatch, gigabytes, small, large):
    """A user must see which of the pairs fit this machine."""
    machine = replace(this_machine(), usable_bytes=gigabytes and gigabytes * 10**9)
    monkeypatch.setattr("dflash_mlx.system.machine.this_machine", lambda: machine)
    pairs = json.loads(run(capsys, "models", "--json"))["pairs"]
    needs = [pair["need_bytes"] for pair in pairs if pair["need_bytes"]]
    assert needs == sorted(needs)
    assert all(pair["need_bytes"] for pair in pairs[: len(needs)])
    fits = {pair["nickname"]: pair["fits"] for pair in pairs}
    assert (fits["qwen3.5-4b"], fits["qwen3.5-122b-a10b"]) == (small, large)


def test_doctor_downloads_nothing(home, capsys, monkeypatch):
    """Doctor is used to decide on a download, so it must not start one."""

    def refuse(*arguments, **options):
        raise AssertionError("network access")

    monkeypatch.setattr("socket.socket.connect", refuse)
    out = run(capsys, "doctor", "-m", "qwen3-4b")
    assert "loading it downloads it" in out


@pytest.mark.embedded
def test_doctor_reports_settings_and_memory(home, capsys):
    """Doctor must answer whether a pair runs on this machine."""
    if not embedded():
        pytest.skip("the embedded pair is not installed")
    found = json.loads(run(capsys, "doctor", "--json", "--context", "1000"))
    assert found["ok"] is True
    assert found["pair"]["block_size"] == 8
    assert found["pair"]["need"]["n_rows"] == 1000
    assert found["pair"]["context_that_fits"] <= found["pair"]["max_context"] == 8192
    assert found["machine"]["device"] in ("cpu", "metal")
    subjects = {finding["subject"] for finding in found["findings"]}
    assert subjects >= {"dflash-mlx", "python", "mlx", "mlx-lm", "memory", "target", "fits"}


@pytest.mark.embedded
def test_doctor_refuses_a_context_that_does_not_fit(home, capsys, monkeypatch):
    """Scripts see only the exit code."""
    if not embedded():
        pytest.skip("the embedded pair is not installed")
    monkeypatch.setattr("dflash_mlx.system.machine.memory_here", lambda: (10**9, 7 * 10**8))
    out = run(capsys, "doctor", "--context", "8000", code=1)
    assert "!!  fits" in out and "do: --context" in out


@pytest.mark.embedded
def test_doctor_refuses_a_context_beyond_the_models_length(home, capsys):
    """Doctor reported that a prompt fits which loading then refused."""
    if not embedded():
        pytest.skip("the embedded pair is not installed")
    out = run(capsys, "doctor", "--context", "100000", code=1)
    assert "!!  context" in out and "100000" in out


def test_doctor_marks_required_fixes(home, capsys, monkeypatch):
    """A required fix was hard to find among twenty good findings."""
    fault = Finding("mlx", "must", "0.1, outside >=0.32", "pip install -U mlx")
    monkeypatch.setattr(checkup, "check_packages", lambda: iter([fault]))
    out = run(capsys, "doctor", "-m", "qwen3-4b", code=1)
    assert "!!  mlx " in out
    assert " do: pip install -U mlx\n" in out


def test_doctor_finds_a_pair_that_does_not_load(home, capsys, tmp_path):
    """Doctor must find a damaged folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    out = run(capsys, "doctor", "-m", str(folder), code=1)
    assert "!!  pair " in out and str(folder) in out


def test_doctor_refuses_a_tokenizer_made_of_code(home, capsys, tmp_path):
    """Doctor asked on stdin whether to run the tokenizer's code, and ran it after a "y"."""
    folder = tiny_folder(tmp_path / "model")
    config = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    out = run(capsys, "doctor", "-m", str(folder), "--draft", "none", code=1)
    assert "auto_map" in out
    assert not (tmp_path / "ran").exists()


@pytest.mark.embedded
def test_doctor_lists_kernels_with_reasons(home, capsys, monkeypatch):
    """Without a Metal device the list is empty; with one each kernel has a reason."""
    if not embedded():
        pytest.skip("the embedded pair is not installed")
    found = json.loads(run(capsys, "doctor", "--kernels", "--json"))
    if found["machine"]["device"] != "metal":
        assert found["pair"]["kernels"] == []
    put = install_kernels
    monkeypatch.setattr(
        "dflash_mlx.kernels.pair_kernels.install_kernels",
        lambda pair, policy: put(pair, policy, FakeChip()),
    )
    found = json.loads(run(capsys, "doctor", "--kernels", "--json"))["pair"]["kernels"]
    assert {item["kernel"] for item in found} >= {"dense_verify", "head_argmax"}
    assert {item["reason"] for item in found} == {"not autotuned on this machine yet"}
    assert {item["geometry"] for item in found} == {None}
    assert "stock MLX; not autotuned" in run(capsys, "doctor", "--kernels")


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a device here")
def test_doctor_autotunes_only_with_a_device(home, capsys):
    """Without a Metal device there are no kernels to autotune."""
    assert main(["doctor", "--autotune"]) == 2
    assert "needs a Metal device" in capsys.readouterr().err


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a device here")
def test_forced_kernels_are_refused_without_a_device(home, capsys):
    """--kernels force was ignored without a device; it must be refused before any download."""
    assert main(["generate", "hi", "--kernels", "force", "-m", "qwen3-4b"]) == 2
    assert "this machine has no Metal device" in capsys.readouterr().err


def test_doctor_answers_for_another_mac(home, capsys):
    """A buyer has to know before the purchase; nothing is read from this machine."""
    out = run(capsys, "doctor", "--as", "M2 16GB", "-m", "qwen3-8b")
    assert "ok  precision" in out and "computed, not measured" in out
    out = run(capsys, "doctor", "--as", "M2 16GB", "-m", "qwen3-8b", "--bits", "16", code=1)
    assert "do: --bits 4" in out
    found = json.loads(run(capsys, "doctor", "--as", "M2 16GB", "-m", "qwen3-8b", "--json"))
    assert found["precision"]["bits"] == 4 and found["machine"] == "M2 16GB"


def test_doctor_lists_all_pairs_and_all_macs(home, capsys):
    """Without a model every known pair has one line."""
    out = run(capsys, "doctor", "--as", "M4 Max 64GB")
    assert [line.split()[0] for line in out.splitlines()] == [
        card.nickname for card in registry.cards()
    ]
    assert "M1 8GB" in run(capsys, "doctor", "--as", "list").splitlines()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--as", "M9 16GB"], "--as"),
        (["--as", "M2 16GB", "-m", "no-such-pair"], "no-such-pair"),
        (["--bits", "7"], "bits is 7"),
        (["--bits", "few"], "--bits"),
        (["--draft-bits", "5"], "draft_bits is 5"),
    ],
)
def test_doctor_refuses_odd_precisions(home, capsys, arguments, named):
    """`--bits 7` must not become 8."""
    assert main(["doctor", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_doctor_and_models_choose_a_precision_on_a_mac(home, capsys, monkeypatch):
    """On Metal the choice is printed with its bytes; a CPU computes in float32."""
    mac = read_mac("M2 16GB")
    machine = replace(
        this_machine(),
        device="metal",
        chip="Apple M2",
        memory_bytes=mac.memory_bytes,
        usable_bytes=mac.usable_bytes,
    )
    monkeypatch.setattr("dflash_mlx.system.machine.this_machine", lambda: machine)
    out = run(capsys, "doctor", "-m", "qwen3-4b")
    assert "ok  precision        target 6 bits" in out
    assert "  choice  6 bits, draft 8 bits" in run(capsys, "models")


def test_a_nickname_loads_the_build_that_fits_this_mac(loads, capsys, monkeypatch):
    """The choice, its bytes and how to override it are one line at the start."""
    mac = read_mac("M2 16GB")
    machine = replace(
        this_machine(),
        device="metal",
        chip="Apple M2",
        memory_bytes=mac.memory_bytes,
        usable_bytes=mac.usable_bytes,
    )
    monkeypatch.setattr("dflash_mlx.system.machine.this_machine", lambda: machine)
    assert main(["generate", "hi", "-m", "qwen3-8b", "--max-tokens", "2"]) == 0
    assert loads[-1] == ("mlx-community/Qwen3-8B-4bit", "auto")
    assert "target 4 bits" in capsys.readouterr().err
    assert main(["generate", "hi", "-m", "qwen3-8b", "--bits", "16"]) == 2
    assert "--bits 4" in capsys.readouterr().err


def test_on_a_cpu_bits_are_a_choice_of_the_user(loads, capsys):
    """Weights become float32 on a CPU, so fewer bits save no memory there."""
    assert main(["generate", "hi", "-m", "qwen3-8b", "--max-tokens", "2"]) == 0
    assert loads[-1] == ("qwen3-8b", "auto")
    assert main(["generate", "hi", "-m", "qwen3-8b", "--bits", "4", "--max-tokens", "2"]) == 0
    assert loads[-1] == ("mlx-community/Qwen3-8B-4bit", "auto")
    assert main(["generate", "hi", "-m", "org/model", "--bits", "4"]) == 2
    assert "nickname" in capsys.readouterr().err
