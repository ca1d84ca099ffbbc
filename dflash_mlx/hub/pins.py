"""Which commit of a repository this user runs: recorded once, kept from then on.

A repository whose revision nobody pinned is resolved to a commit when it is first used. The
commit is written down here, so that a later push to the repository changes nothing until the
user removes the line. One small JSON file, `{"org/name": "commit"}`, replaced atomically.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from dflash_mlx.errors import BadRequest
from dflash_mlx.system.json_file import write_json

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pins:
    """The recorded commits, kept in `folder` (made on the first record)."""

    folder: Path

    @property
    def file(self) -> Path:
        """Where the commits are written down."""
        return self.folder / "revisions.json"

    def get(self, repository: str) -> str | None:
        """The commit recorded for `repository`, None if none was.

        Raises:
            BadRequest: the file was edited into something that cannot be read.
        """
        return self._read().get(repository)

    def record(self, repository: str, commit: str) -> None:
        """Write down `commit` for `repository`, unless one is recorded already.

        Raises:
            OSError: the folder cannot be written.
            BadRequest: the file was edited into something that cannot be read.
        """
        assert _COMMIT.fullmatch(commit), commit
        commits = self._read()
        if repository in commits:
            return
        write_json(self.file, dict(sorted({**commits, repository: commit}.items())))

    def _read(self) -> dict[str, str]:
        try:
            commits = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from error
        if not isinstance(commits, dict) or not all(
            isinstance(commit, str) and _COMMIT.fullmatch(commit) for commit in commits.values()
        ):
            raise self._unreadable("not a table of repositories and 40-digit commits")
        return commits

    def _unreadable(self, why: str) -> BadRequest:
        return BadRequest(f"{self.file} cannot be read ({why}); correct or delete it")
