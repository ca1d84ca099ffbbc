"""A conversion killed at any step leaves no broken output and resumes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dflash_mlx.convert.progress import ConversionProgress
from dflash_mlx.convert.write.work_folder import WorkFolder
from dflash_mlx.errors import BadRequest, OutOfDisk
from tests.convert.checkpoints import DRAFT_CONFIG, draft_folder, draft_weights, run

KILLED = """
import hashlib, os, pathlib, shutil, signal, sys
import dflash_mlx.convert.check.verification, dflash_mlx.models.draft.dflash
from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.run import convert

def forked(watch):
    child = os.fork()
    if not child:
        convert(config, watch)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in files]

source, expected, out = map(pathlib.Path, sys.argv[1:4])
config = ConvertConfig(source=str(source), out=out, shard_bytes=40_000)
step = 0
while True:
    step += 1
    seen = 0
    def watch(report):
        global seen
        seen += 1
        if seen == step:
            print(report.phase, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    if not os.WIFSIGNALED(forked(watch)):
        break
    if out.exists():
        assert content(out) == content(expected), f"half a folder after step {step}"
    else:
        assert forked(lambda report: None) == 0, f"no resuming after step {step}"
        assert content(out) == content(expected), f"another result after step {step}"
    shutil.rmtree(out)
    (out.parent / f".{out.name}.journal").unlink(missing_ok=True)
    assert list(out.parent.iterdir()) == [], f"litter after step {step}"
"""


def test_a_kill_at_every_step_resumes_to_the_same_bytes(tmp_path):
    """A kill lost the finished files, or gave other bytes."""
    config = {**DRAFT_CONFIG, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    weights = {name: array for name, array in draft_weights().items() if "layers.1." not in name}
    source = draft_folder(tmp_path / "source", weights, config)
    (tmp_path / "work").mkdir()
    run(source, tmp_path / "expected", shard_bytes=40_000, verify=True)
    places = [source, tmp_path / "expected", tmp_path / "work/out"]
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, places)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    steps = ran.stdout.split()
    assert set(steps) == {"write", "shard", "files", "check", "publish"}
    assert len(steps) > 20


def test_finished_files_are_not_written_again(tmp_path):
    """A resumed conversion wrote finished files again."""
    source = draft_folder(tmp_path / "source")
    out = tmp_path / "out"

    def stop_after_two(report: ConversionProgress) -> None:
        if report.phase == "shard" and report.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(source, out, stop_after_two)
    assert not out.exists()
    partial = tmp_path / ".out.partial"
    before = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.safetensors")}
    assert len(before) == 2
    run_watched(source, out, lambda report: None)
    after = {name: (out / name).stat().st_mtime_ns for name in before}
    assert after == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def run_watched(source, out, watch):
    from dflash_mlx.convert.options import ConvertConfig
    from dflash_mlx.convert.run import convert

    config = ConvertConfig(source=str(source), out=out, verify=False, shard_bytes=40_000)
    return convert(config, watch)


def test_a_changed_source_restarts_the_conversion(tmp_path):
    """A resumed conversion combined two versions of a checkpoint."""
    source = draft_folder(tmp_path / "source")

    def stop(report: ConversionProgress) -> None:
        if report.phase == "shard":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(source, tmp_path / "out", stop)
    before = (tmp_path / ".out.partial/model-00001-of-00002.safetensors").stat().st_mtime_ns
    time.sleep(0.01)
    os.utime(source / "model.safetensors")
    run_watched(source, tmp_path / "out", lambda report: None)
    after = (tmp_path / "out/model-00001-of-00002.safetensors").stat().st_mtime_ns
    assert after > before


def test_two_conversions_into_one_folder_are_refused(tmp_path):
    """Two conversions would mix their files in one folder."""
    source = draft_folder(tmp_path / "source")
    entered, done = threading.Event(), threading.Event()

    def hold() -> None:
        with WorkFolder(tmp_path / "out", "a", force=False):
            entered.set()
            done.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(20)
    try:
        with pytest.raises(BadRequest, match="another conversion is writing"):
            run(source, tmp_path / "out")
    finally:
        done.set()
        holder.join()
    run(source, tmp_path / "out")


def test_a_finished_folder_is_replaced_only_by_force(tmp_path):
    """Existing models and other files must not be overwritten."""
    source = draft_folder(tmp_path / "source")
    out = tmp_path / "out"
    run(source, out, bits=4)
    with pytest.raises(BadRequest, match="--force"):
        run(source, out, bits=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    run(source, out, bits=8, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 8
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/to-grandmother.txt").write_text("dear")
    with pytest.raises(BadRequest, match="something other than a model"):
        run(source, tmp_path / "letters", force=True)
    assert (tmp_path / "letters/to-grandmother.txt").exists()


def test_output_inside_its_source_is_refused(tmp_path):
    """The next conversion would read its own output as a source."""
    source = draft_folder(tmp_path / "source")
    with pytest.raises(BadRequest, match="inside its source"):
        run(source, source / "mlx")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadRequest, match="its own source"):
        run(source, tmp_path, force=True)
    assert sorted(path.name for path in source.iterdir()) == ["config.json", "model.safetensors"]


def test_a_full_disk_is_reported_and_resumes(tmp_path):
    """A full disk gave a traceback that did not mention that the conversion can resume."""
    source = draft_folder(tmp_path / "source")

    def fill_up(report: ConversionProgress) -> None:
        if report.phase == "shard" and report.done == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(OutOfDisk, match="run the same command again"):
        run_watched(source, tmp_path / "out", fill_up)
    assert not (tmp_path / "out").exists()
    seen = []
    run_watched(source, tmp_path / "out", seen.append)
    assert (tmp_path / "out/model.safetensors.index.json").exists()


def test_too_little_disk_space_is_reported_before_the_first_byte(tmp_path, monkeypatch):
    """The disk was filled before the missing space was reported."""
    monkeypatch.setattr("dflash_mlx.convert.write.destination.free_bytes", lambda folder: 1000)
    with pytest.raises(OutOfDisk, match="needs"):
        run(draft_folder(tmp_path / "source"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_an_interrupt_ends_all_threads(tmp_path):
    """Ctrl-C left a thread that continued to write."""
    before = threading.active_count()

    def interrupt(report: ConversionProgress) -> None:
        if report.phase == "write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(draft_folder(tmp_path / "source"), tmp_path / "out", interrupt)
    assert threading.active_count() == before


def test_signal_handlers_are_unchanged(tmp_path):
    """A library must not replace signal handlers of its host program."""
    before = signal.getsignal(signal.SIGINT)
    run(draft_folder(tmp_path / "source"), tmp_path / "out")
    assert signal.getsignal(signal.SIGINT) is before


def interrupted(tmp_path):
    """Leave a conversion interrupted after its first of two files; return its source."""
    source = draft_folder(tmp_path / "source")

    def stop(report: ConversionProgress) -> None:
        if report.phase == "shard":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(source, tmp_path / "out", stop)
    return source


DAMAGED = {
    "text": b"garbage",
    "a line of text": b"garbage\n",
    "other bytes than UTF-8": b"\xff\xfe\n",
    "a list": b"[1]\n",
    "a number as fingerprint": b'{"fingerprint": 3}\n',
    "no fingerprint": b'{"file": "model.safetensors", "sha256": "x"}\n',
    "deep nesting": b"[" * 200_000 + b"\n",
    "nothing": b"",
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("partial", ["folder", "file", "link", "none"])
def test_a_damaged_journal_never_blocks(tmp_path, damage, partial):
    """A damaged journal ended every later conversion in a traceback, --force included."""
    source = draft_folder(tmp_path / "source")
    (tmp_path / ".out.journal").write_bytes(DAMAGED[damage])
    leftover = tmp_path / ".out.partial"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/letter.txt").write_text("dear")
    if partial == "folder":
        leftover.mkdir()
        (leftover / "stray.txt").write_text("not of this conversion")
    elif partial == "file":
        leftover.write_text("a file")
    elif partial == "link":
        leftover.symlink_to(tmp_path / "elsewhere")
    run_watched(source, tmp_path / "out", lambda report: None)
    assert not (tmp_path / "out/stray.txt").exists()
    assert (tmp_path / "elsewhere/letter.txt").exists()
    assert not (tmp_path / ".out.journal").exists()


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "a folder", "a link", "a circular link", "deleted"]
)
def test_a_damaged_finished_file_is_written_again(tmp_path, damage):
    """A finished file was trusted by its name, and its old hash went into the pair card."""
    source = interrupted(tmp_path)
    path = tmp_path / ".out.partial/model-00001-of-00002.safetensors"
    raw = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif damage == "cut":
        path.write_bytes(raw[:-1])
    else:
        path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "a circular link":
        path.symlink_to(path.name)
    elif damage == "a link":
        (tmp_path / "copy").write_bytes(raw)
        path.symlink_to(tmp_path / "copy")
    run_watched(source, tmp_path / "out", lambda report: None)
    assert (tmp_path / "out" / path.name).read_bytes() == raw
    assert not (tmp_path / "out" / path.name).is_symlink()


@pytest.mark.parametrize("name", ["x" * 5000, "../source/model.safetensors", "/etc/passwd", "a\0"])
def test_impossible_names_in_the_journal_are_ignored(tmp_path, name):
    """A name outside the folder must not count as a finished file, nor end the conversion."""
    source = interrupted(tmp_path)
    with (tmp_path / ".out.journal").open("a") as journal:
        journal.write(json.dumps({"file": name, "sha256": "0" * 64}) + "\n")
    run_watched(source, tmp_path / "out", lambda report: None)
    assert (tmp_path / "out/config.json").exists()


def test_files_that_the_journal_does_not_list_are_removed(tmp_path):
    """A stray file in the partial folder became part of the output."""
    source = interrupted(tmp_path)
    (tmp_path / ".out.partial/stray.txt").write_text("not of this conversion")
    (tmp_path / ".out.partial/stray").mkdir()
    run_watched(source, tmp_path / "out", lambda report: None)
    assert not (tmp_path / "out/stray.txt").exists()
    assert not (tmp_path / "out/stray").exists()


@pytest.mark.parametrize("name", [".out.journal", ".out.partial"])
def test_what_cannot_be_replaced_is_named_for_deletion(tmp_path, name):
    """A folder in place of the journal, or a folder of another user, gave a traceback."""
    source = draft_folder(tmp_path / "source")
    (tmp_path / name).mkdir()
    if name == ".out.partial":
        (tmp_path / name / "inner").mkdir()
        (tmp_path / name / "inner/file").write_text("x")
        (tmp_path / name / "inner").chmod(0o500)
        if os.access(tmp_path / name / "inner", os.W_OK):
            pytest.skip("root may delete everything")
    with pytest.raises(BadRequest, match="delete"):
        run(source, tmp_path / "out")
    (tmp_path / name / "inner").chmod(0o700) if name == ".out.partial" else None
