"""Files of a data set's repository: which there are, and one of them brought here."""

from pathlib import Path

from dflash_mlx.hub.errors import explained


def file_names(repository: str) -> list[str]:
    """Return the names of the repository's files, as the hub lists them.

    Raises:
        UnknownModel, DownloadFailed: there is no such data set, or nobody to say.
    """
    from huggingface_hub import HfApi

    with explained(repository, None, kind="dataset"):
        return HfApi().list_repo_files(repository, repo_type="dataset")


def cached_names(repository: str) -> list[str]:
    """Return, in order, the names of those of its files that are in the cache; asks nobody."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(repository, repo_type="dataset", local_files_only=True)
    except LocalEntryNotFoundError:
        return []
    folder = Path(found)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def bring(repository: str, name: str) -> Path:
    """Return one file of the repository in the hub's cache, fetched if it is not there.

    Raises:
        DownloadFailed: it could not be brought.
    """
    from huggingface_hub import hf_hub_download

    with explained(repository, None, kind="dataset"):
        return Path(hf_hub_download(repository, name, repo_type="dataset"))
