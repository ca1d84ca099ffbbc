"""The target's output for a sample: hidden states for the draft and a distribution to learn.

Must not know the draft or the loss.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from dflash_mlx.models.protocols import Target
from dflash_mlx.train.data.samples import Sample
from dflash_mlx.train.loop.checkpoint import read_arrays

_LOG = logging.getLogger("dflash_mlx")
_PREFILL_STEP = 2048
"""Tokens per forward of the target: mlx-lm's prefill step size."""


class TargetFeatures(NamedTuple):
    """The target's output for one sample of n tokens whose answer follows token `first`.

    `hidden` [1, n, F] bfloat16 are the hidden states that the draft reads. `teacher` [n - first,
    K] int32 and `probabilities` [n - first, K] float32 are the target's most likely next tokens;
    row i is the distribution after token `first + i`.
    """

    hidden: mx.array
    teacher: mx.array
    probabilities: mx.array


class FeatureStore:
    """Computes features by sample and keeps up to `max_bytes` of them in `folder`.

    Every epoch has another order of samples, so a full store keeps its first entries: an LRU
    store would miss every time. Rows are rounded to bfloat16 whether they are stored or not, so
    the result of a run does not depend on `max_bytes`.

    `identity` names the target and its weights; files for another identity are not read.
    """

    def __init__(
        self,
        target: Target,
        target_layer_ids: Sequence[int],
        teacher_top_k: int,
        folder: Path,
        max_bytes: int,
        identity: str,
    ) -> None:
        self.target = target
        self.target_layer_ids = tuple(target_layer_ids)
        self.teacher_top_k = teacher_top_k
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._made_for = f"{identity} {self.target_layer_ids} {teacher_top_k}"
        self._bytes_left = max_bytes - sum(file.stat().st_size for file in folder.iterdir())

    def __call__(self, sample: Sample) -> TargetFeatures:
        """Return the features of `sample`, from disk or from the target."""
        file = self._file(sample)
        if stored := self._stored(file, sample):
            return stored
        made = self._compute(sample)
        mx.eval(made)
        self._store(file, made)
        return made._replace(probabilities=made.probabilities.astype(mx.float32))

    def _file(self, sample: Sample) -> Path:
        digest = hashlib.blake2b(self._made_for.encode(), digest_size=16)
        digest.update(np.array([len(sample.prompt), *sample.prompt, *sample.answer]).tobytes())
        return self.folder / f"{digest.hexdigest()}.safetensors"

    def _stored(self, file: Path, sample: Sample) -> TargetFeatures | None:
        """Return the features in `file`; None if there is none, or it is damaged."""
        if not file.exists():
            return None
        try:
            arrays, _ = read_arrays(file)
            found = TargetFeatures(arrays["hidden"], arrays["teacher"], arrays["probabilities"])
            self._check(found, sample)
        except (RuntimeError, ValueError, KeyError) as error:
            _LOG.warning("%s is damaged (%s) and is computed again", file, error)
            file.unlink()
            return None
        return found._replace(probabilities=found.probabilities.astype(mx.float32))

    def _check(self, found: TargetFeatures, sample: Sample) -> None:
        """Raise ValueError unless `found` has the shapes of features of `sample`."""
        vocab_size = self.target.shape.vocab_size
        rows = (sample.n_tokens - sample.first, min(self.teacher_top_k, vocab_size))
        n_features = len(self.target_layer_ids) * self.target.shape.hidden_size
        expected = ((1, sample.n_tokens, n_features), rows, rows)
        if tuple(array.shape for array in found) != expected:
            raise ValueError("its tensors have other shapes")
        teacher = np.array(found.teacher)
        if teacher.min() < 0 or teacher.max() >= vocab_size:
            raise ValueError("it contains token ids outside the vocabulary")

    def _compute(self, sample: Sample) -> TargetFeatures:
        tokens = mx.array([[*sample.prompt, *sample.answer]])
        caches, first = self.target.make_caches(), sample.first
        hidden, teacher, probabilities = [], [], []
        for start in range(0, tokens.shape[1], _PREFILL_STEP):
            output = self.target.forward(
                tokens[:, start : start + _PREFILL_STEP], caches, self.target_layer_ids
            )
            for cache in caches:
                cache.commit(output.hidden.shape[1])
            hidden.append(output.features.astype(mx.bfloat16))
            answer_rows = output.hidden[:, max(first - start, 0) :]
            if answer_rows.shape[1]:
                ids, shares = self._most_likely(self.target.logits(answer_rows)[0])
                teacher.append(ids)
                probabilities.append(shares)
            mx.eval(hidden, teacher, probabilities)
        return TargetFeatures(
            mx.concatenate(hidden, axis=1),
            mx.concatenate(teacher),
            mx.concatenate(probabilities).astype(mx.float16),
        )

    def _most_likely(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Return ids and probabilities [n, K] of the K most likely tokens of `logits` [n, V]."""
        count = min(self.teacher_top_k, logits.shape[-1])
        ids = mx.argpartition(logits, -count, axis=-1)[:, -count:]
        logits = logits.astype(mx.float32)
        normalizer = mx.logsumexp(logits, axis=-1, keepdims=True)
        return ids.astype(mx.int32), mx.exp(mx.take_along_axis(logits, ids, axis=-1) - normalizer)

    def _store(self, file: Path, made: TargetFeatures) -> None:
        size = sum(array.nbytes for array in made)
        if size > self._bytes_left:
            return
        partial = file.with_suffix(".partial.safetensors")
        try:
            mx.save_safetensors(str(partial), made._asdict())
            os.replace(partial, file)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            _LOG.warning(
                "features are no longer stored on disk and are computed in every epoch: %s", error
            )
            self._bytes_left = 0
        else:
            self._bytes_left -= size
