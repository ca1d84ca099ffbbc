"""Turns errors of the hub, the network and the disk into one line with a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from dflash_mlx.errors import DFlashError, DownloadFailed, UnknownModel
from dflash_mlx.pairs import registry
from dflash_mlx.system.foreign import reason


@contextmanager
def hub_errors(
    repository: str, revision: str | None, kind: Literal["model", "dataset"] = "model"
) -> Iterator[None]:
    """Convert errors while downloading `repository` into DFlashError.

    Raises:
        UnknownModel: the hub has no such repository.
        DownloadFailed: any other failure.
    """
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{repository}"
    try:
        yield
    except DFlashError:
        raise
    except errors.GatedRepoError as error:
        raise DownloadFailed(
            f"{repository} is gated: accept its licence at {page}, then log in with: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadFailed(
            f"{repository} has no revision {revision}; {page} lists the existing ones"
        ) from error
    except errors.RepositoryNotFoundError as error:
        similar = registry.similar_names(repository.partition("/")[2]) if kind == "model" else ()
        hint = f" Similar nicknames: {', '.join(similar)}." if similar else ""
        raise UnknownModel(
            f"{repository} is neither a local folder nor a repository that you can see on "
            f"{constants.ENDPOINT}.{hint} If it is private, log in with: hf auth login"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadFailed(
            f"{repository} is not complete in the hub cache and HF_HUB_OFFLINE is set; unset it "
            "once to download the rest, or give a local folder"
        ) from error
    except errors.HfHubHTTPError as error:
        raise DownloadFailed(
            f"{constants.ENDPOINT} answered {error.response.status_code} for {repository}; "
            "run the command again later"
        ) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise DownloadFailed(
            f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}) and {repository} is "
            "not complete in the hub cache; check the network and run the command again; "
            "downloaded data is kept"
        ) from error
    except MemoryError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why, remedy = ("the disk is full", "free some space") if full else (error, "fix that")
        raise DownloadFailed(
            f"{repository} could not be written to {constants.HF_HUB_CACHE} ({why}); {remedy} "
            "and run the command again; downloaded data is kept"
        ) from error
    except Exception as error:
        raise DownloadFailed(
            f"{constants.ENDPOINT} gave an answer for {repository} that cannot be used "
            f"({reason(error)}); check HF_ENDPOINT and run the command again"
        ) from error
