"""What the hub, the network and the disk may answer, as one line that says what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from dflash_mlx.errors import DFlashError, DownloadFailed, UnknownModel
from dflash_mlx.pairs import registry


@contextmanager
def explained(
    repository: str, revision: str | None, kind: Literal["model", "dataset"] = "model"
) -> Iterator[None]:
    """Turn the errors of fetching `repository`, a model's or a data set's, into ours.

    Raises:
        UnknownModel: the hub knows no such repository.
        DownloadFailed: anything else that kept it from arriving.
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
            f"{repository} has no revision {revision}; its page, {page}, lists those that exist"
        ) from error
    except errors.RepositoryNotFoundError as error:
        resembling = registry.near(repository.partition("/")[2]) if kind == "model" else ()
        hint = f" Nicknames near it: {', '.join(resembling)}." if resembling else ""
        raise UnknownModel(
            f"there is no folder {repository} here and no repository of that name that you may "
            f"see on {constants.ENDPOINT}.{hint} If it is private, log in with: hf auth login"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadFailed(
            f"{repository} is not complete in the hub cache and HF_HUB_OFFLINE is set; unset it "
            "once, or give a local folder"
        ) from error
    except errors.HfHubHTTPError as error:
        raise DownloadFailed(
            f"{constants.ENDPOINT} answered {error.response.status_code} for {repository}; "
            "run the command again later"
        ) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise DownloadFailed(
            f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}) and {repository} is "
            "not complete in the hub cache; check the network and run the command again, what "
            "arrived is kept"
        ) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why, remedy = ("the disk is full", "make room") if full else (error, "correct this")
        raise DownloadFailed(
            f"{repository} could not be written to {constants.HF_HUB_CACHE} ({why}); {remedy} and "
            "run the command again, what arrived is kept"
        ) from error
