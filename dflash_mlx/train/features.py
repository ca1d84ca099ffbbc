"""What the target makes of a sample: taps for the draft to read, a distribution to learn from.

One forward pass for each sample, kept on disk while a byte budget allows and made again
otherwise. Samples come round in a new order every epoch, so what came first stays: to drop the
oldest for the newest would make every pass a miss. Rows pass through bfloat16 whether they were
kept or not, so a run does not depend on the budget.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.models.protocols import Target
from dflash_mlx.train.samples import Sample

_LOG = logging.getLogger("dflash_mlx")
_ROWS = 2048


class Features(NamedTuple):
    """One sample through the target: n tokens, of which the answer begins behind row `first`.

    `taps` [1, n, F] bfloat16; `teacher` [n - first, K] int32 ids and `shares` [n - first, K]
    float32 probabilities, row i being what the target expects behind token `first + i`.
    """

    taps: mx.array
    teacher: mx.array
    shares: mx.array


class FeatureStore:
    """Features by sample, at most `max_bytes` of them in `folder`.

    `identity` says which target with which weights this is: another one's files are not read.
    """

    def __init__(
        self,
        target: Target,
        taps: Sequence[int],
        n_teacher: int,
        folder: Path,
        max_bytes: int,
        identity: str,
    ) -> None:
        self.target = target
        self.target_layer_ids = tuple(taps)
        self.n_teacher = n_teacher
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._made_for = f"{identity} {self.target_layer_ids} {n_teacher}"
        self._left = max_bytes - sum(file.stat().st_size for file in folder.iterdir())

    def __call__(self, sample: Sample) -> Features:
        """Return the features of `sample`, read or made."""
        file = self._file(sample)
        if file.exists():
            read: Any = mx.load(str(file))
            return Features(read["taps"], read["teacher"], read["shares"].astype(mx.float32))
        made = self._make(sample)
        mx.eval(made)
        self._keep(file, made)
        return made._replace(shares=made.shares.astype(mx.float32))

    def _file(self, sample: Sample) -> Path:
        digest = hashlib.blake2b(self._made_for.encode(), digest_size=16)
        digest.update(np.array([len(sample.prompt), *sample.prompt, *sample.answer]).tobytes())
        return self.folder / f"{digest.hexdigest()}.safetensors"

    def _make(self, sample: Sample) -> Features:
        tokens = mx.array([[*sample.prompt, *sample.answer]])
        caches, first = self.target.make_caches(), sample.first
        taps, teacher, shares = [], [], []
        for start in range(0, tokens.shape[1], _ROWS):
            walked = self.target.forward(
                tokens[:, start : start + _ROWS], caches, self.target_layer_ids
            )
            for cache in caches:
                cache.commit(walked.hidden.shape[1])
            taps.append(walked.features.astype(mx.bfloat16))
            behind = walked.hidden[:, max(first - start, 0) :]
            if behind.shape[1]:
                ids, probs = self._likeliest(self.target.logits(behind)[0])
                teacher.append(ids)
                shares.append(probs)
            mx.eval(taps, teacher, shares)
        return Features(
            mx.concatenate(taps, axis=1),
            mx.concatenate(teacher),
            mx.concatenate(shares).astype(mx.float16),
        )

    def _likeliest(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Return ids and probabilities [n, K] of the K best of `logits` [n, V]."""
        count = min(self.n_teacher, logits.shape[-1])
        ids = mx.argpartition(logits, -count, axis=-1)[:, -count:]
        logits = logits.astype(mx.float32)
        spread = mx.logsumexp(logits, axis=-1, keepdims=True)
        return ids.astype(mx.int32), mx.exp(mx.take_along_axis(logits, ids, axis=-1) - spread)

    def _keep(self, file: Path, made: Features) -> None:
        size = sum(array.nbytes for array in made)
        if size > self._left:
            return
        partial = file.with_suffix(".partial.safetensors")
        try:
            mx.save_safetensors(str(partial), made._asdict())
            os.replace(partial, file)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            _LOG.warning("no more features are kept on disk, they are made again: %s", error)
            self._left = 0
        else:
            self._left -= size
