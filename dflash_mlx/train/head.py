"""The head that training predicts with: the draft's own, or the target's, whole or in part.

Most of a step over a large vocabulary goes into tokens that no answer holds; until the last
part of a run the target's head is cut to the rows of those that do.
"""

from collections.abc import Callable, Iterable

import mlx.core as mx
import numpy as np

from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.protocols import Target

_ROWS = 256


class Head:
    """Logits over `ids`, or over the whole vocabulary where that is None.

    Ids are the target's, ascending. `project` maps normed hidden rows [..., D] to [..., V].
    """

    def __init__(
        self, project: Callable[[mx.array], mx.array], ids: np.ndarray | None, vocab_size: int
    ) -> None:
        self.project = project
        self.ids = ids
        self._places = np.full(vocab_size, -1, np.int32)
        if ids is None:
            self._places[:] = np.arange(vocab_size)
        else:
            self._places[ids] = np.arange(len(ids))

    def places(self, tokens: np.ndarray) -> np.ndarray:
        """Return where `tokens` stand among the logits, -1 for those that are not there."""
        found: np.ndarray = self._places[tokens]
        return found

    def tokens(self, places: np.ndarray) -> np.ndarray:
        """Return the target's ids of `places` among the logits."""
        return places if self.ids is None else self.ids[places]


def whole_head(draft: BoundDraft) -> Head:
    """Return the head that `draft` decodes with."""
    model, vocab_size = draft.model, draft.target.shape.vocab_size
    ids = None
    if "d2t" in model:
        offsets = np.array(model.d2t)
        ids = offsets + np.arange(len(offsets))
    return Head(draft.logits, ids, vocab_size)


def narrow_head(draft: BoundDraft, ids: np.ndarray, dtype: mx.Dtype) -> Head:
    """Return the target's head cut to `ids`, scaled and capped as the draft's configuration says.

    A draft with a head of its own keeps it.
    """
    if "lm_head" in draft.model:
        return whole_head(draft)
    rows = head_rows(draft.target, ids).astype(dtype)
    mx.eval(rows)
    return Head(lambda hidden: draft.shaped(hidden @ rows.T), ids, draft.target.shape.vocab_size)


def head_rows(target: Target, ids: np.ndarray) -> mx.array:
    """Return the rows [V, D] of the target's projection for `ids`, whatever stores them."""
    size, wanted = target.shape.hidden_size, mx.array(ids)
    columns = []
    for start in range(0, size, _ROWS):
        unit = mx.eye(min(_ROWS, size - start), size, start)
        columns.append(target.head(unit[None])[0][:, wanted])
        mx.eval(columns[-1])
    return mx.concatenate(columns, axis=0).T


def occurring(answers: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return the ids that occur in `answers`, ascending."""
    seen = np.zeros(vocab_size, bool)
    for answer in answers:
        seen[answer] = True
    return np.flatnonzero(seen)
