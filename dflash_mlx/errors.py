"""Every error that dflash-mlx raises on purpose.

A message says what was given, what is needed and what to do. The command line prints it as one
line and exits with code 2; a traceback means a bug.
"""


class DFlashError(Exception):
    """Base class of the errors of this package; catch it to handle all of them.

    Examples:
        >>> try:
        ...     engine.generate("")
        ... except dflash_mlx.DFlashError as error:
        ...     print(error)
        the prompt is empty; give it some text
    """


class BadRequest(DFlashError, ValueError):
    """An option, message or prompt that is not supported as given."""


class UnknownModel(DFlashError, LookupError):
    """A name that is neither a path nor a nickname nor a repository, local or on the hub."""


class DownloadFailed(DFlashError, OSError):
    """A repository that exists but could not be downloaded."""


class BadCheckpoint(DFlashError, ValueError):
    """Files that are missing, truncated or contradict their configuration."""


class UnsupportedModel(DFlashError, ValueError):
    """A well-formed model of a kind that this package does not support."""


class PairMismatch(DFlashError, ValueError):
    """A target and a draft that do not fit together."""


class EngineBusy(DFlashError):
    """An engine whose queue of requests is full."""


class OutOfMemoryBudget(DFlashError, MemoryError):
    """KV cache rows that would exceed the memory budget of `CacheConfig`."""


class OutOfDisk(DFlashError, OSError):
    """A disk without room for a file to be written."""
