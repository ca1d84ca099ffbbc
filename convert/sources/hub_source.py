"""Opens a hub repository whose weights are downloaded one shard at a time, when they are needed.

It must not know what a conversion does with a shard.
"""

import fnmatch
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from dflash_mlx.convert.safetensors import StoredRows
from dflash_mlx.convert.sources.location import CARD_PATTERNS, SourceLocation, revision_date
from dflash_mlx.convert.sources.remote_shards import RemoteShards, ShardFile
from dflash_mlx.convert.sources.source import ModelSource, checked_config, kind_of, source_form
from dflash_mlx.convert.tensors import Rows
from dflash_mlx.errors import BadCheckpoint, DownloadFailed, UnsupportedModel
from dflash_mlx.hub.download import Commit, DownloadJob, RemoteFile
from dflash_mlx.hub.errors import hub_errors
from dflash_mlx.hub.listing import list_files
from dflash_mlx.hub.pins import Pins
from dflash_mlx.loading.safetensors import TensorEntry, read_checkpoint, read_index
from dflash_mlx.pairs.model_files import (
    CONFIG,
    INDEX,
    TOKENIZER_CONFIG,
    check_folder,
    is_small_file,
    weights_among,
)
from dflash_mlx.system.foreign import quoted, reading
from dflash_mlx.system.json_file import read_json
from dflash_mlx.system.settings import settings_folder

_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
_FIRST_REQUEST = 1 << 16
"""Bytes of the first request for a header: headers of published shards have 10 to 60 kB."""
_TIMEOUT_S = 30.0
"""Seconds without data before a connection counts as lost, as in hub/download.py."""


def open_hub_source(
    repository: str, revision: str | None, report: Callable[[str], None]
) -> ModelSource:
    """Return the source in a repository; weights are not downloaded, only their headers.

    Configuration, tokenizer and model card are downloaded into the hub cache.

    Raises:
        UnknownModel: the hub has no such repository.
        DownloadFailed: the hub cannot be reached or refuses.
        UnsupportedModel: the repository has no safetensors, or needs its own code.
        BadCheckpoint: files are missing, malformed or inconsistent.
    """
    from huggingface_hub import constants

    pins = Pins(settings_folder())
    wanted = revision or pins.get(repository)
    cache = Path(constants.HF_HUB_CACHE)
    if not cache.is_absolute():
        raise DownloadFailed(
            f"{repository} cannot be downloaded to {cache}: this user has no home folder; set "
            "HF_HOME to a folder for downloads"
        )
    report(f"{repository}: not complete in the hub cache, converting while downloading")
    with hub_errors(repository, wanted):
        sha, listed = list_files(repository, wanted)
        remote = {file.name: file for file in listed}
        commit = Commit(repository, sha, cache)
        _fetch_small_files(commit, remote)
        config = checked_config(read_json(commit.snapshot / CONFIG), repository)
        report(f"{repository}: reading the headers of the weights at {sha[:12]}")
        entries = _read_headers(commit, remote)
    date = revision_date(repository, sha)
    if wanted is None:
        try:
            pins.record(repository, sha)
        except OSError as error:
            report(f"{repository}: its commit could not be recorded in {pins.file} ({error})")
    files = {name: ShardFile(name, remote[name].n_bytes) for name in entries}
    tensors: dict[str, Rows] = {
        tensor: StoredRows(files[name], entry.offset, entry.dtype, entry.shape)
        for name, table in entries.items()
        for tensor, entry in table.items()
    }
    if not tensors:
        raise BadCheckpoint(f"{repository} contains no weights; choose another repository")
    with reading(commit.snapshot / CONFIG, "the kind of model", "choose another repository"):
        kind = kind_of(config)
    location = SourceLocation(repository, commit.snapshot, None, sha, date)
    shards = RemoteShards(commit, {name: remote[name] for name in entries}, entries, files)
    form = source_form(config, "safetensors")
    return ModelSource(location, kind, form, config, tensors, shards=shards)


def _fetch_small_files(commit: Commit, remote: Mapping[str, RemoteFile]) -> None:
    if CONFIG not in remote or not weights_among(remote):
        raise UnsupportedModel(
            f"{commit.repository} has no {CONFIG} with safetensors; use a repository with both, or "
            "download a .gguf file and give its path"
        )
    small = [
        file
        for name, file in remote.items()
        if is_small_file(name) or any(fnmatch.fnmatch(name, item) for item in CARD_PATTERNS)
    ]
    # these two decide whether the model is refused, so they are downloaded first
    small.sort(key=lambda file: file.name not in (CONFIG, TOKENIZER_CONFIG))
    job = DownloadJob(commit, small, lambda done, total: None)
    for file in small[:2]:
        job.fetch(file)
    check_folder(commit.snapshot)
    for file in small[2:]:
        job.fetch(file)


def _read_headers(
    commit: Commit, remote: Mapping[str, RemoteFile]
) -> dict[str, dict[str, TensorEntry]]:
    """Return the tensors of each weight file, from the first bytes of each.

    The headers are checked as those of local files: each is written into a sparse file of the
    full size, which needs no more disk space than the header.
    """
    with tempfile.TemporaryDirectory() as name:
        try:
            return _checked_headers(commit, remote, Path(name))
        except (BadCheckpoint, UnsupportedModel) as error:
            # the user knows the repository and not the temporary folder
            text = str(error).replace(name, commit.repository)
            raise type(error)(text) from error


def _checked_headers(
    commit: Commit, remote: Mapping[str, RemoteFile], folder: Path
) -> dict[str, dict[str, TensorEntry]]:
    if INDEX in remote:
        shutil.copyfile(commit.snapshot / INDEX, folder / INDEX)
    index = read_index(folder)
    for file in sorted(set(index.values())) if index else weights_among(remote):
        if file not in remote:
            raise BadCheckpoint(
                f"{commit.repository} has no file {quoted(file)}, which its {INDEX} names; "
                "choose another revision or repository"
            )
        with (folder / file).open("wb") as copy:
            copy.write(_first_bytes(commit, remote[file]))
            copy.truncate(remote[file].n_bytes)
    return read_checkpoint(folder)


def _first_bytes(commit: Commit, file: RemoteFile) -> bytes:
    """Return the header of a weight file, from the hub cache or from the hub."""
    if (cached := commit.snapshot / file.name).exists():
        with cached.open("rb") as content:
            start = content.read(8)
            return start + content.read(_header_bytes(start, file))
    return _request_header(commit, file)


def _header_bytes(start: bytes, file: RemoteFile) -> int:
    """Return the length of a header from its first eight bytes; 0 if it cannot be valid."""
    length: int = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    return length if length <= min(_MAX_HEADER_BYTES, file.n_bytes - 8) else 0


def _request_header(commit: Commit, file: RemoteFile) -> bytes:
    """Return the header of a file on the hub, without the rest of the file."""
    found = b""
    while True:
        needed = 8 + _header_bytes(found[:8], file) if len(found) >= 8 else _FIRST_REQUEST
        needed = min(needed, file.n_bytes)
        if len(found) >= needed:
            return found[:needed]
        before = len(found)
        found = _request_range(commit, file, found, needed)
        if len(found) <= before:
            return found  # too short, which reading the header reports


def _request_range(commit: Commit, file: RemoteFile, found: bytes, stop: int) -> bytes:
    """Return `found`, the first bytes of a file on the hub, extended to `stop` bytes."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(commit.repository, file.name, revision=commit.sha)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    headers["Range"] = f"bytes={len(found)}-{stop - 1}"
    with get_session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as response:
        hf_raise_for_status(response)
        received = bytearray(found if response.status_code == 206 else b"")
        for chunk in response.iter_bytes():
            received += chunk
            if len(received) >= stop:
                break  # a server without ranges sends the whole file
    return bytes(received[:stop])
