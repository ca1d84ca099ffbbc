"""Files of a data set on the hub: listing them and downloading one."""

from pathlib import Path

from dflash_mlx.hub.errors import hub_errors
from dflash_mlx.hub.listing import list_files


def file_names(repository: str) -> list[str]:
    """Return the names of the repository's files, as the hub lists them.

    Raises:
        UnknownModel: there is no such data set.
        DownloadFailed: the hub cannot be reached.
    """
    with hub_errors(repository, None, kind="dataset"):
        return [file.name for file in list_files(repository, None, kind="dataset")[1]]


def cached_names(repository: str) -> list[str]:
    """Return the sorted names of its files in the hub cache, without network access."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(repository, repo_type="dataset", local_files_only=True)
    except LocalEntryNotFoundError:
        return []
    folder = Path(found)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def download_file(repository: str, name: str) -> Path:
    """Return the path of one file in the hub cache, downloading it if necessary.

    Raises:
        DownloadFailed: the file could not be downloaded.
    """
    from huggingface_hub import hf_hub_download

    with hub_errors(repository, None, kind="dataset"):
        return Path(hf_hub_download(repository, name, repo_type="dataset"))
