"""The folder of a run, OUT.run: everything that is needed to resume it, locked while in use.

Must not know how a run trains.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import mlx.core as mx

from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.system.atomic import replace_file
from dflash_mlx.system.foreign import reading, reason
from dflash_mlx.train.loop.checkpoint import read_arrays
from dflash_mlx.train.run.options import TrainConfig
from dflash_mlx.train.run.stored import STATE_FORMAT, RunState, is_history_line, typed

_LOG = logging.getLogger("dflash_mlx")
_MAX_FILE_BYTES = 2**30
"""Largest `run.json` or history that is read: a million steps log about 300 MB."""

_FULL_DISK = "free disk space and continue with --resume"


@dataclass(frozen=True)
class BestWeights:
    """The weights with the best evaluation, and their tokens per round in decoding."""

    arrays: dict[str, mx.array]
    tokens_per_round: float


class RunFolder:
    """A run's folder, used by one process at a time.

    `run.json` holds options, plan and state; `data/` generated samples; `features/` the target's
    features; `history.jsonl` one line per step or evaluation; `checkpoint.safetensors` the state
    of training; `best.safetensors` the weights with the best evaluation.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.best_file = path / "best.safetensors"
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
        if not self._is_run():
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
                for item in filter(self._is_own, self._content()):
                    if item.is_dir() and not item.is_symlink():
                        shutil.rmtree(item)
                    else:
                        item.unlink()
        except OSError as error:
            raise BadRequest(
                f"{self.path} cannot be created ({error.strerror}); choose another -o"
            ) from error
        return self

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            BadRequest: another process holds it, or the file cannot be opened.
        """
        try:
            self._lock = self._lock_path.open("a+b")
        except OSError as error:
            raise BadRequest(
                f"{self._lock_path} cannot be opened ({reason(error)}); delete it"
            ) from error
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

    def state(self) -> RunState:
        """Return the content of `run.json`.

        Raises:
            BadRequest: there is no run in this folder.
            BadCheckpoint: `run.json` cannot be read, or contains values that no run writes.
        """
        if not os.path.lexists(self._state):
            raise BadRequest(f"{self.path} contains no run to resume; leave out --resume")
        with reading(self._state, "the state of the run", "start again with --force"):
            state: RunState = typed(RunState, json.loads(_text(self._state)), "the state")
        return state

    def stored_config(self) -> TrainConfig:
        """Return the options of the run.

        Raises:
            BadRequest, BadCheckpoint: as `state`, or the state has no options.
        """
        config = self.state().config
        if config is None:
            raise BadCheckpoint(f"{self._state} has no options; start again with --force")
        return config

    def update_state(self, **values: Any) -> RunState:
        """Replace values in `run.json`; return its content."""
        before = self.state() if self._state.is_file() else RunState(STATE_FORMAT)
        state = replace(before, **values)
        table = {**asdict(state), "config": state.config and state.config.as_values()}
        text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
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
        """Return the valid lines of the history; a crash can leave an incomplete one."""
        return list(self._lines())

    def rewind(self, step: int) -> None:
        """Remove the lines after `step`: those steps are taken again."""
        text = "".join(json.dumps(line) + "\n" for line in self._lines() if line["step"] <= step)
        replace_file(
            self._history, lambda partial: partial.write_text(text, encoding="utf-8"), _FULL_DISK
        )

    def save_best(
        self, weights: Mapping[str, mx.array], step: int, tokens_per_round: float
    ) -> None:
        """Store the weights with the best evaluation so far."""
        metadata = {"step": str(step), "tokens_per_round": repr(tokens_per_round)}
        replace_file(
            self.best_file,
            lambda partial: mx.save_safetensors(str(partial), dict(weights), metadata),
            _FULL_DISK,
        )

    def best(self) -> BestWeights | None:
        """Return the weights with the best evaluation, None before the first evaluation.

        Raises:
            BadCheckpoint: the file is damaged.
        """
        file = self.best_file
        if not os.path.lexists(file):
            return None
        with reading(
            file,
            "the best weights",
            "delete it, and --resume evaluates the checkpoint again",
        ):
            arrays, metadata = read_arrays(file)
            return BestWeights(
                arrays, typed(float, json.loads(metadata["tokens_per_round"]), "tokens_per_round")
            )

    def delete_features(self) -> None:
        """Delete the stored features; they can be computed again."""
        shutil.rmtree(self.features, ignore_errors=True)

    def _content(self) -> list[Path]:
        """Return the files and folders in this folder without the lock, [] if it is missing."""
        if not self.path.is_dir():
            return []
        return [item for item in self.path.iterdir() if item != self._lock_path]

    def _is_run(self) -> bool:
        """Return whether the content belongs to a run, even if parts of it are lost or damaged."""
        return os.path.lexists(self._state) or all(map(self._is_own, self._content()))

    def _is_own(self, item: Path) -> bool:
        """Return whether a file or folder in this folder is one that a run writes."""
        files = (self._state, self._history, self.checkpoint, self.best_file)
        own = {*files, self.data, self.features, self.path / "curves.html"}
        return item in own or item.name.startswith(".partial-")

    def _has_plan(self) -> bool:
        """Return whether the run got as far as its plan; before that it contains no work."""
        try:
            return self.state().n_samples is not None
        except BadCheckpoint:
            return True
        except BadRequest:
            return bool(self._content())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not os.path.lexists(self._history):
            return
        damaged = 0
        with reading(self._history, "the history", "delete it; the curves start again"):
            lines = _bytes(self._history).splitlines()
        for text in lines:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if is_history_line(line):
                yield line
            else:
                damaged += 1
        if damaged > 1:  # one incomplete line is what a crash leaves
            _LOG.warning("%s: %d damaged lines are ignored", self._history, damaged)


def _text(file: Path) -> str:
    return _bytes(file).decode("utf-8")


def _bytes(file: Path) -> bytes:
    if file.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
    return file.read_bytes()
