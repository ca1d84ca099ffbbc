"""The hub's answer about a repository, as checked values: its commit and its files.

Whatever answers at the hub's address (a captive portal, a proxy, a mirror) is bytes of others;
nothing unchecked leaves this module. It must not decide what to download.
"""

import json
import re
from typing import Any, Literal
from urllib.parse import quote

from dflash_mlx.errors import DownloadFailed
from dflash_mlx.hub.download import RemoteFile
from dflash_mlx.system.foreign import quoted

Kind = Literal["model", "dataset"]

_MAX_BYTES = 64_000_000
"""Largest accepted listing. The hub needs about 300 bytes per file, so this is 200,000 files."""
_TIMEOUT_S = 10.0
"""Seconds to wait for the hub's answer; huggingface_hub's own default."""
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def list_files(
    repository: str, revision: str | None, kind: Kind = "model"
) -> tuple[str, list[RemoteFile]]:
    """Return the commit of a revision (None: the default branch) and its files.

    Raises:
        DownloadFailed: the answer is not a listing.
        huggingface_hub.errors.HTTPError: the hub refused the request or cannot be reached.
    """
    answer = _request(repository, revision, kind)
    if not isinstance(answer, dict) or not isinstance(answer.get("siblings"), list):
        raise _not_a_listing(repository, f"a JSON value without files: {quoted(answer)}")
    sha = answer.get("sha")
    if not isinstance(sha, str) or not _HASH.fullmatch(sha):
        raise _not_a_listing(repository, f"the commit {quoted(sha)}")
    return sha, [_remote_file(entry, repository) for entry in answer["siblings"]]


def _request(repository: str, revision: str | None, kind: Kind) -> Any:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = f"{constants.ENDPOINT}/api/{kind}s/{repository}"
    if revision is not None:
        url += f"/revision/{quote(revision, safe='')}"
    body = bytearray()
    with get_session().stream(
        "GET", url, params={"blobs": "true"}, headers=build_hf_headers(), timeout=_TIMEOUT_S
    ) as response:
        hf_raise_for_status(response)
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_BYTES:
                raise _not_a_listing(repository, f"more than {_MAX_BYTES // 10**6} MB")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _not_a_listing(repository, quoted(bytes(body[:60]))) from error


def _remote_file(entry: Any, repository: str) -> RemoteFile:
    """Return one file of a listing. Name and hash become paths in the cache, so both are checked.

    A file outside LFS has git's hash of its content.
    """
    fields = entry if isinstance(entry, dict) else {}
    name, n_bytes, lfs = fields.get("rfilename"), fields.get("size"), fields.get("lfs")
    digest = lfs.get("sha256") if isinstance(lfs, dict) else fields.get("blobId")
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        raise _not_a_listing(repository, f"the file name {quoted(name)}")
    if type(n_bytes) is not int or n_bytes < 0:
        raise _not_a_listing(repository, f"{quoted(n_bytes)} as the size of {quoted(name)}")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise _not_a_listing(repository, f"{quoted(digest)} as the hash of {quoted(name)}")
    return RemoteFile(str(name), n_bytes, digest)


def _not_a_listing(repository: str, got: str) -> DownloadFailed:
    from huggingface_hub import constants

    return DownloadFailed(
        f"{constants.ENDPOINT} answered with {got} instead of the list of files of {repository}; "
        "check HF_ENDPOINT, and whether this network needs a login in a browser"
    )
