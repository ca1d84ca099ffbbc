"""Uploads a finished conversion to the hub after the user has confirmed it."""

from collections.abc import Callable
from pathlib import Path
from shlex import quote

from dflash_mlx.convert.sources.side_files import REPORT
from dflash_mlx.errors import BadRequest, DownloadFailed
from dflash_mlx.system.foreign import quoted, reading, reason
from dflash_mlx.system.json_file import read_json

Confirm = Callable[[str], bool]
"""Shows a question and returns whether the user agrees."""


def check_repository(repository: str) -> None:
    """Check the name of a repository; call it before the conversion starts.

    Raises:
        BadRequest: the hub does not allow the name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise BadRequest(
            f"upload is {quoted(repository)}; it needs a repository name of the form owner/name"
        ) from error


def upload_folder(folder: Path, repository: str, confirm: Confirm) -> str | None:
    """Upload `folder` and return the address of its page; None if `confirm` returns False.

    Raises:
        BadRequest: the folder is not a finished conversion, or the name is not allowed.
        DownloadFailed: the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    check_repository(repository)
    if not (folder / REPORT).is_file():
        raise BadRequest(f"{folder} is not a finished conversion; convert the model first")
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if not confirm(
        f"Upload {n_bytes / 1e9:.2f} GB, converted from {', '.join(_sources(folder))}, to "
        f"{repository}, which anybody can read? Check that the licence allows it."
    ):
        return None
    api = HfApi()
    try:
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise DownloadFailed(
            f"{repository} cannot be written ({reason(error)}); the conversion in {folder} is "
            f"complete. Log in with: hf auth login, then: hf upload {repository} "
            f"{quote(str(folder))}"
        ) from error
    return f"{api.endpoint}/{repository}"


def _sources(folder: Path) -> list[str]:
    """Return the names of the models that a folder was converted from, from its report."""
    path = folder / REPORT
    with reading(path, "the conversion report", "convert the model again with --force"):
        models = read_json(path)["models"]
        return [str(model["source"]) for model in models.values()]
