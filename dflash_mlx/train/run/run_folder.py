"""The folder of a run, OUT.run: everything that is needed to resume it, locked while in use.

Must not know how a run trains.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import mlx.core as mx

from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.system.atomic import replace_file

FORMAT = 2
"""Version of `run.json`; a run of another version is refused."""

_FULL_DISK = "free disk space and continue with --resume"


class RunFolder:
    """A run's folder, used by one process at a time.

    `run.json` holds options, plan and state; `data/` generated samples; `features/` the target's
    features; `history.jsonl` one line per step or evaluation; `checkpoint.safetensors` the state
    of training; `best.safetensors` the weights with the best evaluation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.data = path / "data"
        self.features = path / "features"
        self._state = path / "run.json"
        self._history = path / "history.jsonl"
        self._lock_path = path / ".lock"
        self._lock: IO[bytes] | None = None

    def check(self, force: bool) -> None:
        """Check that a new run may use this folder.

        Raises:
            BadRequest: the folder contains another run and `force` is False, or other files; it
                cannot be written; or another process uses it.
        """
        existing = next(path for path in (self.path, *self.path.parents) if os.path.exists(path))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise BadRequest(f"{self.path} cannot be created or written; choose another -o")
        if not self._content():
            return
        if not self._state.is_file():
            raise BadRequest(f"{self.path} contains files of something else; choose another -o")
        with self:
            if not force and self._has_plan():
                raise BadRequest(
                    f"{self.path} contains a run; continue it with --resume, or overwrite it with "
                    "--force"
                )

    def create(self, force: bool) -> Self:
        """Create the folder for a new run, or empty it.

        Raises:
            BadRequest: as `check`, or the folder cannot be created.
        """
        self.check(force)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self:  # another process may have taken the folder after the check
                for item in self._content():
                    shutil.rmtree(item) if item.is_dir() else item.unlink()
        except OSError as error:
            raise BadRequest(
                f"{self.path} cannot be created ({error.strerror}); choose another -o"
            ) from error
        return self

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            BadRequest: another process holds it.
        """
        self._lock = self._lock_path.open("a+b")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise BadRequest(
                f"another process is training in {self.path}; wait for it, or choose another -o"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        self._lock.close()

    def state(self) -> dict[str, Any]:
        """Return the content of `run.json`.

        Raises:
            BadRequest: there is no run in this folder.
            BadCheckpoint: `run.json` cannot be read.
        """
        if not self._state.is_file():
            raise BadRequest(f"{self.path} contains no run to resume; leave out --resume")
        try:
            state: Any = json.loads(self._state.read_text(encoding="utf-8"))
            if state["format"] != FORMAT:
                raise BadCheckpoint(
                    f"{self._state} has format {state['format']} and this version reads {FORMAT}; "
                    "start again with --force"
                )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadCheckpoint):
                raise
            raise BadCheckpoint(
                f"{self._state} does not describe a run ({error}); start again with --force"
            ) from error
        return dict(state)

    def update_state(self, **values: Any) -> dict[str, Any]:
        """Add values to `run.json`; return its content."""
        before = self.state() if self._state.is_file() else {}
        state = {"format": FORMAT, **before, **values}
        text = json.dumps(state, indent=2, ensure_ascii=False) + "\n"
        replace_file(
            self._state, lambda partial: partial.write_text(text, encoding="utf-8"), _FULL_DISK
        )
        return state

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the history.

        Raises:
            DFlashError: the file cannot be written.
        """
        try:
            with self._history.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DFlashError(
                f"{self._history} cannot be written ({error.strerror}); the last checkpoint is not "
                f"affected; {_FULL_DISK}"
            ) from error

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of the history up to the first incomplete one."""
        return list(self._lines())

    def rewind(self, step: int) -> None:
        """Remove the lines after `step`: those steps are taken again."""
        text = "".join(json.dumps(line) + "\n" for line in self._lines() if line["step"] <= step)
        replace_file(
            self._history, lambda partial: partial.write_text(text, encoding="utf-8"), _FULL_DISK
        )

    def save_best(self, weights: Mapping[str, mx.array], step: int) -> None:
        """Store the weights with the best evaluation so far."""
        metadata = {"step": str(step)}
        replace_file(
            self.best,
            lambda partial: mx.save_safetensors(str(partial), dict(weights), metadata),
            _FULL_DISK,
        )

    def best_weights(self) -> dict[str, mx.array] | None:
        """Return the weights with the best evaluation, None before the first evaluation."""
        if not self.best.is_file():
            return None
        read: Any = mx.load(str(self.best))
        return dict(read)

    def delete_features(self) -> None:
        """Delete the stored features; they can be computed again."""
        shutil.rmtree(self.features, ignore_errors=True)

    def _content(self) -> list[Path]:
        """Return the files and folders in this folder without the lock, [] if it is missing."""
        if not self.path.is_dir():
            return []
        return [item for item in self.path.iterdir() if item != self._lock_path]

    def _has_plan(self) -> bool:
        """Return whether the run got as far as its plan; before that it holds no work."""
        try:
            return "n_samples" in self.state()
        except BadCheckpoint:
            return True

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._history.is_file():
            return
        for line in self._history.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                return
