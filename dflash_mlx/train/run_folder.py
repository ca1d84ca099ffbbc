"""The folder of a run: everything it needs to go on, and what it has seen so far.

`run.json` says what was asked for and what came of it, `data/` holds written samples, `features/`
what the target made of samples, `history.jsonl` a line per logged step, `checkpoint.safetensors`
the state of training, and `best.safetensors` the weights that decoded best. One process at a
time.
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
from dflash_mlx.train.checkpoint import replace_file

FORMAT = 1


class RunFolder:
    """A run's folder, locked while open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.data = path / "data"
        self.features = path / "features"
        self._facts = path / "run.json"
        self._history = path / "history.jsonl"
        self._lock_path = path / ".lock"
        self._lock: IO[bytes] | None = None

    def check(self, force: bool) -> None:
        """Check that a new run may have this folder.

        Raises:
            BadRequest: it holds a run that `force` does not give up, or something else; it cannot
                be written; or another process works here.
        """
        place = next(path for path in (self.path, *self.path.parents) if os.path.exists(path))
        if not os.access(place, os.W_OK | os.X_OK):
            raise BadRequest(f"{self.path} cannot be made or written; choose another -o")
        if not self._content():
            return
        if not self._facts.is_file():
            raise BadRequest(f"{self.path} holds something else; choose another -o")
        with self:
            if not force and self._planned():
                raise BadRequest(
                    f"{self.path} holds a run; go on with --resume, or begin anew with --force"
                )

    def begin(self, force: bool) -> Self:
        """Make the folder for a new run, or empty it.

        Raises:
            BadRequest: as `check`, or it cannot be made.
        """
        self.check(force)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self:  # nobody may be at work in it
                for item in self._content():
                    shutil.rmtree(item) if item.is_dir() else item.unlink()
        except OSError as error:
            raise BadRequest(
                f"{self.path} cannot be made ({error.strerror}); choose another -o"
            ) from error
        return self

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            BadRequest: another process works here.
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

    def facts(self) -> dict[str, Any]:
        """Return what is known of the run.

        Raises:
            BadRequest: there is no run here.
            BadCheckpoint: `run.json` cannot be read.
        """
        if not self._facts.is_file():
            raise BadRequest(f"{self.path} holds no run to go on with; leave out --resume")
        try:
            facts: Any = json.loads(self._facts.read_text(encoding="utf-8"))
            if facts["format"] != FORMAT:
                raise BadCheckpoint(
                    f"{self._facts} has format {facts['format']} and we read {FORMAT}; update "
                    "dflash-mlx"
                )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadCheckpoint):
                raise
            raise BadCheckpoint(
                f"{self._facts} is no description of a run ({error}); begin anew with --force"
            ) from error
        return dict(facts)

    def know(self, **facts: Any) -> dict[str, Any]:
        """Add to what is known of the run; return all of it."""
        before = self.facts() if self._facts.is_file() else {}
        known = {"format": FORMAT, **before, **facts}
        text = json.dumps(known, indent=2, ensure_ascii=False) + "\n"
        replace_file(self._facts, lambda partial: partial.write_text(text, encoding="utf-8"))
        return known

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the history.

        Raises:
            DFlashError: it could not be written.
        """
        try:
            with self._history.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DFlashError(
                f"{self._history} could not be written ({error.strerror}); the last checkpoint is "
                "good. Make room and go on with --resume"
            ) from error

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of the history; one that a crash cut short is left out."""
        return list(self._lines())

    def rewind(self, step: int) -> None:
        """Forget lines behind `step`: those steps will be taken again."""
        kept = "".join(json.dumps(line) + "\n" for line in self._lines() if line["step"] <= step)
        replace_file(self._history, lambda partial: partial.write_text(kept, encoding="utf-8"))

    def save_best(self, weights: Mapping[str, mx.array], step: int) -> None:
        """Keep the weights that decoded best so far."""
        facts = {"step": str(step)}
        replace_file(
            self.best, lambda partial: mx.save_safetensors(str(partial), dict(weights), facts)
        )

    def best_weights(self) -> dict[str, mx.array] | None:
        """Return the weights that decoded best, None before anything was measured."""
        if not self.best.is_file():
            return None
        read: Any = mx.load(str(self.best))
        return dict(read)

    def forget_features(self) -> None:
        """Delete what can be computed again."""
        shutil.rmtree(self.features, ignore_errors=True)

    def _content(self) -> list[Path]:
        """What is in the folder, its lock aside; nothing where there is none."""
        if not self.path.is_dir():
            return []
        return [item for item in self.path.iterdir() if item != self._lock_path]

    def _planned(self) -> bool:
        """Whether the run here came as far as its plan; before that there is nothing to lose."""
        try:
            return "n_samples" in self.facts()
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


def holds_run(path: Path) -> bool:
    """Whether a run's folder is at `path`."""
    return os.path.isfile(path / "run.json")
