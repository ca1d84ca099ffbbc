"""The commit of each repository that this user runs, recorded at first use.

A later push to the repository then has no effect until the user deletes the entry. The file is
`{"org/name": "commit"}`, replaced atomically.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.foreign import reading
from dflash_mlx.system.json_file import write_json

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pins:
    """The recorded commits in `folder`, which is created at the first record."""

    folder: Path

    @property
    def file(self) -> Path:
        """The file with the commits."""
        return self.folder / "revisions.json"

    def get(self, repository: str) -> str | None:
        """Return the commit recorded for `repository`, or None.

        Raises:
            BadRequest: the file is not a table of commits.
        """
        return self._read().get(repository)

    def record(self, repository: str, commit: str) -> None:
        """Record `commit` for `repository` unless a commit is already recorded.

        Raises:
            OSError: the folder cannot be written.
            BadRequest: the file is not a table of commits.
        """
        assert _COMMIT.fullmatch(commit), commit
        commits = self._read()
        if repository in commits:
            return
        write_json(self.file, dict(sorted({**commits, repository: commit}.items())))

    def _read(self) -> dict[str, str]:
        with reading(self.file, "the recorded commits", "correct or delete it", BadRequest):
            try:
                commits = json.loads(self.file.read_text(encoding="utf-8"))
            except (FileNotFoundError, NotADirectoryError):
                return {}
            if not isinstance(commits, dict) or not all(
                isinstance(commit, str) and _COMMIT.fullmatch(commit) for commit in commits.values()
            ):
                raise ValueError("not a table of repositories and 40-digit commits")
            return commits
