"""Facts about this machine, and the folders and files that the program keeps on it.

It must not know models, checkpoints or requests.
"""

__all__ = [
    "atomic",
    "blas",
    "chips",
    "foreign",
    "installer",
    "json_file",
    "machine",
    "memory",
    "paths",
    "settings",
    "state_file",
]
