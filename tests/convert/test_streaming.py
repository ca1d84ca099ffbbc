"""Conversion while downloading: one shard on the disk at a time, resumable, all or nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants
import mlx.core as mx
import pytest

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.progress import ConversionProgress
from dflash_mlx.convert.run import convert, ensure_converted, plan_conversion
from dflash_mlx.errors import BadCheckpoint, BadRequest, DownloadFailed, OutOfDisk, UnsupportedModel
from tests.convert.checkpoints import draft_folder, run, snapshot, target_folder, weights_of
from tests.hub.stub import HubStub, serve

REPOSITORY = "org/model"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@contextmanager
def hub(files: dict[str, bytes], tmp_path: Path, monkeypatch) -> Iterator[HubStub]:
    """Serve `files` as `REPOSITORY`, with an empty hub cache."""
    with serve(HubStub({REPOSITORY: files})) as running:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield running


def published(folder: Path, n_shards: int = 3, **weights: mx.array) -> dict[str, bytes]:
    """Return the files of a target with its weights in shards, as a repository holds them."""
    tensors = weights or weights_of(folder)
    (folder / "model.safetensors").unlink(missing_ok=True)
    names, index = sorted(tensors), {}
    for number in range(n_shards):
        file = f"model-{number + 1:05d}-of-{n_shards:05d}.safetensors"
        part = names[number * len(names) // n_shards : (number + 1) * len(names) // n_shards]
        mx.save_safetensors(str(folder / file), {name: tensors[name] for name in part})
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stream(out: Path, watch=lambda report: None, **options):
    options = {"verify": False, "bits": 4, **options}
    return convert(ConvertConfig(REPOSITORY, out, **options), watch)


def same_weights(ours: Path, theirs: Path) -> bool:
    names = sorted(path.name for path in theirs.glob("*.safetensors*"))
    return bool(names) and all(
        (ours / name).read_bytes() == (theirs / name).read_bytes() for name in names
    )


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3_5"])
def test_a_streamed_source_gives_the_bytes_of_a_local_one(tmp_path, monkeypatch, settings, family):
    """Experts of several shards, and tensors that are computed, must not depend on the order."""
    folder = target_folder(tmp_path / "source", family)
    files = published(folder, 4)
    run(folder, tmp_path / "local", bits=4, keep_undivided=True, shard_bytes=60_000)
    with hub(files, tmp_path, monkeypatch):
        stream(tmp_path / "out", keep_undivided=True, shard_bytes=60_000)
    assert same_weights(tmp_path / "out", tmp_path / "local")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_the_report_has_the_errors_of_a_local_conversion(tmp_path, monkeypatch, settings):
    """Errors are measured while a shard is on the disk; afterwards there is no source."""
    folder = target_folder(tmp_path / "source", "llama")
    files = published(folder)
    local = run(folder, tmp_path / "local", bits=4, verify=True).checks[0]
    with hub(files, tmp_path, monkeypatch):
        streamed = stream(tmp_path / "out", verify=True).checks[0]
    assert {error.name: error for error in streamed.errors} == {
        error.name: error for error in local.errors
    }
    assert streamed.divergence is None
    assert "--keep-original" in str(streamed.divergence_skipped)
    check = json.loads((tmp_path / "out/conversion.json").read_text())["models"]["."]["check"]
    assert check["n_tensors"] == local.n_tensors


def test_tensors_of_one_row_in_several_shards_are_copied_until_all_are_there(
    tmp_path, monkeypatch, settings
):
    """A quantized source may have words and scales of one weight in different shards."""
    run(target_folder(tmp_path / "source", "llama"), tmp_path / "packed", bits=4)
    config = ConvertConfig(str(tmp_path / "packed"), tmp_path / "local", dequantize=True)
    convert(config)
    files = published(tmp_path / "packed", 7)
    copied = set()

    def watch(report: ConversionProgress) -> None:
        copied.update(path.name for path in (tmp_path / ".out.download/spill").glob("*"))

    with hub(files, tmp_path, monkeypatch):
        stream(tmp_path / "out", watch, bits=None, dequantize=True)
    assert len(copied) > 1
    assert same_weights(tmp_path / "out", tmp_path / "local")


def test_at_most_one_shard_is_on_the_disk(tmp_path, monkeypatch, settings):
    """Source and result together need more disk than many machines have."""
    files = published(target_folder(tmp_path / "source"), 5)
    shards = {name: len(raw) for name, raw in files.items() if name.endswith(".safetensors")}
    most = 0

    def watch(report: ConversionProgress) -> None:
        nonlocal most
        folder = tmp_path / ".out.download"
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        linked = sum(1 for path in folder.rglob("*") if path.is_symlink())
        most = max(most, used)
        assert linked <= 1

    with hub(files, tmp_path, monkeypatch):
        stream(tmp_path / "out", watch)
    assert most <= 2 * max(shards.values())  # a link counts as the file that it names
    assert not any(path.suffix == ".safetensors" for path in (tmp_path / "cache").rglob("*"))


def test_keep_original_downloads_into_the_hub_cache(tmp_path, monkeypatch, settings):
    """The original must be there for the next conversion, and for the whole check."""
    files = published(target_folder(tmp_path / "source", "llama"))
    with hub(files, tmp_path, monkeypatch) as stub:
        outcome = stream(tmp_path / "out", verify=True, keep_original=True)
        assert outcome.checks[0].divergence is not None
        stub.requests.clear()
        stream(tmp_path / "again")
        assert not any("safetensors" in path for path in stub.requests)
    cached = {path.name for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert cached == {name for name in files if name.endswith(".safetensors")}


KILLED = """
import os, pathlib, random, shutil, signal, sys
import huggingface_hub.constants as constants
url, cache, expected, out, count = sys.argv[1:6]
constants.ENDPOINT, constants.HF_HUB_CACHE = url, cache
constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
import dflash_mlx.convert.run, mlx_lm.models.llama, mlx_lm.tokenizer_utils
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.run import convert
expected, out = pathlib.Path(expected), pathlib.Path(out)
config = ConvertConfig("org/model", out, bits=4, shard_bytes=30_000)

def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in files]

def killed_at(step):
    # forked, because this process evaluates no MLX array; returns whether the child was killed
    seen = 0
    def watch(report):
        nonlocal seen
        seen += 1
        if seen == step:
            print(report.phase, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if not child:
        try:
            convert(config, watch)
        finally:
            sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, status
    return os.WIFSIGNALED(status)

steps = 1
while killed_at(steps):
    steps += 25
shutil.rmtree(out)
dice = random.Random(5)
for _ in range(int(count)):
    for _ in range(dice.randint(1, 3)):
        if not out.exists():
            killed_at(dice.randint(1, steps))
    if not out.exists():
        assert not killed_at(0)
    assert content(out) == content(expected), "another result"
    assert [path.name for path in out.parent.iterdir()] in (["out"], [".out.journal", "out"])
    shutil.rmtree(out.parent)
    out.parent.mkdir()
"""


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(tmp_path, monkeypatch, settings):
    """A kill lost finished shards, or gave other bytes."""
    files = published(target_folder(tmp_path / "source", "llama"), 6)
    (tmp_path / "work").mkdir()
    with hub(files, tmp_path, monkeypatch) as stub:
        stream(tmp_path / "expected", verify=True, shard_bytes=30_000)
        places = [str(tmp_path / name) for name in ("cache", "expected", "work/out")]
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KILLED, stub.url, *places, "10"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert {"download", "write"} <= set(ran.stdout.split())


def test_finished_shards_are_not_downloaded_again(tmp_path, monkeypatch, settings):
    """Resuming must cost at most the shard that was being converted."""
    files = published(target_folder(tmp_path / "source"), 5)

    def stop(report: ConversionProgress) -> None:
        if report.phase == "write" and report.done > report.total / 2:
            raise KeyboardInterrupt

    with hub(files, tmp_path, monkeypatch) as stub:
        with pytest.raises(KeyboardInterrupt):
            stream(tmp_path / "out", stop)
        lines = (tmp_path / ".out.journal").read_text().splitlines()
        done = {json.loads(line).get("step") for line in lines} - {None}
        assert done
        stub.requests.clear()
        stream(tmp_path / "out")
        fetched = [path for path in stub.requests if path.startswith("GET")]
        for name in done:
            # one request for the header
            assert sum(path.endswith(name) for path in fetched) == 1
    assert (tmp_path / "out/config.json").exists()


@pytest.mark.parametrize("damage", ["output", "journal", "deleted output"])
def test_damage_between_two_runs_is_repaired(tmp_path, monkeypatch, settings, damage):
    """Finished pieces were trusted without reading them."""
    files = published(target_folder(tmp_path / "source"), 5)

    def stop(report: ConversionProgress) -> None:
        if report.phase == "write" and report.done > report.total / 2:
            raise KeyboardInterrupt

    with hub(files, tmp_path, monkeypatch):
        stream(tmp_path / "expected")
        with pytest.raises(KeyboardInterrupt):
            stream(tmp_path / "out", stop)
        output = tmp_path / ".out.partial/model.safetensors"
        journal = tmp_path / ".out.journal"
        if damage == "output":
            raw = bytearray(output.read_bytes())
            for at in range(5000, len(raw), 3000):
                raw[at] ^= 1
            output.write_bytes(raw)
        elif damage == "deleted output":
            output.unlink()
        else:
            journal.write_text(journal.read_text().replace("[[", "[[-"))
        stream(tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "expected")


def test_too_little_disk_space_is_reported_before_the_first_shard(tmp_path, monkeypatch, settings):
    """The disk was full after hours of downloading."""
    files = published(target_folder(tmp_path / "source"))
    with hub(files, tmp_path, monkeypatch):
        jobs = plan_conversion(ConvertConfig(REPOSITORY, tmp_path / "out", bits=4))
        result = jobs[0].plan.n_bytes
        shard = max(len(raw) for name, raw in files.items() if name.endswith(".safetensors"))
        for free in (result, result + shard - 1):
            monkeypatch.setattr(
                "dflash_mlx.convert.write.destination.free_bytes", lambda folder, free=free: free
            )
            with pytest.raises(OutOfDisk, match=f"needs {result + shard} more bytes"):
                stream(tmp_path / "out")
    assert not list(tmp_path.glob(".out*/**/*.safetensors"))


def test_a_lost_connection_keeps_what_was_downloaded(tmp_path, monkeypatch, settings):
    """A dropped connection must neither end in a traceback nor lose the part of a shard."""
    files = published(target_folder(tmp_path / "source"))
    name = "model-00002-of-00003.safetensors"
    with hub(files, tmp_path, monkeypatch) as stub:
        stub.break_after[name] = [len(files[name]), 3000, 0]
        with pytest.raises(DownloadFailed):
            stream(tmp_path / "out")
        stub.ranges.clear()
        stream(tmp_path / "out")
        assert "bytes=3000-" in stub.ranges


@pytest.mark.parametrize("damage", ["hash", "header"])
def test_a_damaged_shard_is_not_converted(tmp_path, monkeypatch, settings, damage):
    """Other bytes than the hub lists must never reach the result."""
    files = published(target_folder(tmp_path / "source"))
    name = "model-00002-of-00003.safetensors"
    with hub(files, tmp_path, monkeypatch) as stub:
        if damage == "hash":

            def spoil(report: ConversionProgress) -> None:
                if report.phase == "download":
                    stub.damaged.add(name)

            with pytest.raises(DownloadFailed, match="damaged"):
                stream(tmp_path / "out", spoil)
        else:
            stub.damaged.add(name)
            with pytest.raises(BadCheckpoint):
                stream(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_nan_in_a_late_shard_leaves_nothing(tmp_path, monkeypatch, settings):
    """Whole or not at all."""
    folder = target_folder(tmp_path / "source")
    weights = weights_of(folder)
    weights["model.norm.weight"] = mx.full(weights["model.norm.weight"].shape, float("nan"))
    nan = pytest.raises(BadCheckpoint, match=r"org/model: model\.norm\.weight contains NaN")
    with hub(published(folder, 3, **weights), tmp_path, monkeypatch), nan:
        stream(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_auto_needs_the_whole_source(tmp_path, monkeypatch, settings):
    """The recipe runs the model before it is converted."""
    files = published(target_folder(tmp_path / "source"))
    with (
        hub(files, tmp_path, monkeypatch),
        pytest.raises(BadRequest, match="--keep-original"),
    ):
        stream(tmp_path / "out", bits=None, recipe="auto:4.5")


def test_a_pair_streams_target_and_draft(tmp_path, monkeypatch, settings):
    """Both sources are downloaded by shards, the draft into its folder."""
    files = published(target_folder(tmp_path / "source"))
    draft = draft_folder(tmp_path / "draft")
    run(tmp_path / "source", tmp_path / "local", bits=4, draft=str(draft))
    with hub(files, tmp_path, monkeypatch) as stub:
        stub.repositories["org/draft"] = {path.name: path.read_bytes() for path in draft.iterdir()}
        stream(tmp_path / "out", draft="org/draft")
    assert same_weights(tmp_path / "out", tmp_path / "local")
    assert same_weights(tmp_path / "out/draft", tmp_path / "local/draft")


def test_progress_has_throughput_and_time_left(tmp_path, monkeypatch, settings):
    """Hours of downloading without an estimate."""
    reports = []
    with hub(published(target_folder(tmp_path / "source")), tmp_path, monkeypatch):
        stream(tmp_path / "out", reports.append)
    downloads = [report for report in reports if report.phase == "download"]
    assert downloads[-1].done == downloads[-1].total
    assert any(report.bytes_per_s for report in downloads)
    assert all(report.seconds_left is not None for report in downloads[5:])
    writes = [report for report in reports if report.phase == "write"]
    assert writes[-1].done == writes[-1].total
    assert writes[-1].seconds_left == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda files: files.pop("config.json"), UnsupportedModel),
        (lambda files: files.pop("model-00001-of-00003.safetensors"), BadCheckpoint),
        (lambda files: files.update({"config.json": b"[]"}), BadCheckpoint),
        (
            lambda files: files.update({"model.safetensors.index.json": b'{"weight_map": {}}'}),
            BadCheckpoint,
        ),
        (
            lambda files: files.update({"model-00001-of-00003.safetensors": b"\xff" * 4000}),
            BadCheckpoint,
        ),
        (lambda files: files.update({"model-00001-of-00003.safetensors": b""}), BadCheckpoint),
    ],
)
def test_a_bad_repository_gives_one_line(tmp_path, monkeypatch, settings, change, error):
    """The headers must be checked before anything is downloaded or written."""
    files = published(target_folder(tmp_path / "source"))
    change(files)
    with hub(files, tmp_path, monkeypatch), pytest.raises(error) as found:
        stream(tmp_path / "out")
    assert "\n" not in str(found.value)
    assert "org/model" in str(found.value) or "org--model" in str(found.value)
    assert not os.path.lexists(tmp_path / "out")


ENSURED = """
import pathlib, sys
import huggingface_hub.constants as constants
url, cache, out = sys.argv[1:4]
constants.ENDPOINT, constants.HF_HUB_CACHE = url, cache
constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.run import ensure_converted
print(ensure_converted(ConvertConfig("org/model", pathlib.Path(out), bits=4, verify=False)))
"""


def test_two_starts_at_once_convert_once(tmp_path, monkeypatch, settings):
    """Two processes that start with the same model downloaded and converted it twice."""
    files = published(target_folder(tmp_path / "source"))
    out = tmp_path / "out"
    with hub(files, tmp_path, monkeypatch) as stub:
        command = [sys.executable, "-W", "ignore", "-c", ENSURED]
        command += [stub.url, str(tmp_path / "cache"), str(out)]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for process in running:
            printed, errors = process.communicate(timeout=120)
            assert (process.returncode, printed.strip()) == (0, str(out)), errors
        whole = [path for path in stub.requests if path.startswith("GET") and "safetensors" in path]
        shards = [name for name in files if name.endswith(".safetensors")]
        for name in shards:
            # each process reads the header, and one downloads the shard
            assert sum(path.endswith(name) for path in whole) <= 3
        stub.requests.clear()
        assert ensure_converted(ConvertConfig(REPOSITORY, out, bits=4)) == out
        assert stub.requests == []


def test_another_conversion_is_not_taken_for_this_one(tmp_path, monkeypatch, settings):
    """A folder with other options, or a damaged one, was loaded as the requested model."""
    files = published(target_folder(tmp_path / "source"))
    out = tmp_path / "out"
    with hub(files, tmp_path, monkeypatch):
        stream(out)
        for changes in ({"bits": 8}, {"revision": "d" * 40}, {"draft": "org/model"}):
            with pytest.raises(BadRequest, match="exists"):
                ensure_converted(ConvertConfig(REPOSITORY, out, **{"bits": 4, **changes}))
        (out / "pair.json").write_text("{")
        with pytest.raises(BadRequest, match="exists"):
            ensure_converted(ConvertConfig(REPOSITORY, out, bits=4))
