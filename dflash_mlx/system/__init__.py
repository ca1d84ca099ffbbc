"""What this machine is and where the program keeps its own files.

It must not know models, checkpoints or requests.
"""

__all__ = [
    "blas",
    "foreign",
    "installer",
    "json_file",
    "machine",
    "memory",
    "paths",
    "settings",
    "state_file",
]
