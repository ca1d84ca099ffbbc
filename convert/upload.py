"""A finished folder to the hub, after the user said yes to what becomes public."""

import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from dflash_mlx.convert.sources.side_files import REPORT
from dflash_mlx.errors import BadRequest, DownloadFailed

Ask = Callable[[str], bool]


def check_repository(repository: str) -> None:
    """Check a repository's name, before hours are spent on what goes there.

    Raises:
        BadRequest: the hub cannot have a repository of that name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise BadRequest(f"{repository!r} is no repository name; give owner/name") from error


def upload_folder(folder: Path, repository: str, ask: Ask) -> str | None:
    """Upload `folder` and return the address of its page; None if `ask` was answered no.

    Raises:
        BadRequest: the folder is no finished conversion, or the name is none.
        DownloadFailed: the hub refused or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    check_repository(repository)
    if not (folder / REPORT).is_file():
        raise BadRequest(f"{folder} is no finished conversion; convert first, then upload")
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sources = [model["source"] for model in _models(folder)]
    if not ask(
        f"Upload {n_bytes / 1e9:.2f} GB, made from {', '.join(sources)}, to {repository}, which "
        "anybody can read? Check that the licence allows it."
    ):
        return None
    api = HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, HTTPError, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DownloadFailed(
            f"{repository} could not be written ({why}); {folder} is finished. Log in with: hf "
            f"auth login, then: hf upload {repository} {quote(str(folder))}"
        ) from error
    return f"{api.endpoint}/{repository}"


def _models(folder: Path) -> list[dict[str, str]]:
    models: dict[str, dict[str, str]] = json.loads((folder / REPORT).read_text())["models"]
    return list(models.values())
