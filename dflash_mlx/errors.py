"""Every error a caller of dflash-mlx can meet.

A message has three parts: what we got, what we need, what to do about it. The command
line prints it as one line and leaves with exit code 2; a traceback means a bug in here.
"""


class DFlashError(Exception):
    """The parent of all errors raised on purpose."""


class BadRequest(DFlashError, ValueError):
    """An option or a prompt that cannot be honoured as given."""


class UnknownModel(DFlashError, LookupError):
    """A name that is no path, no nickname, no cached repository and no hub repository."""


class DownloadFailed(DFlashError, OSError):
    """A repository that exists but could not be brought here."""


class BadCheckpoint(DFlashError, ValueError):
    """Files that are missing, truncated or do not hold what their configuration says."""


class UnsupportedModel(DFlashError, ValueError):
    """A well-formed model of a kind that is not handled here."""


class PairMismatch(DFlashError, ValueError):
    """A target and a draft that do not belong together."""


class OutOfMemoryBudget(DFlashError, MemoryError):
    """Rows that would not fit into the memory a caller granted."""


class OutOfDisk(DFlashError, OSError):
    """A disk that has no room for what was to be written."""
