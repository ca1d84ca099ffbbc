"""The initial weights of a new draft, and its reduced vocabulary.

Must not know samples, recipes or runs.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from dflash_mlx.errors import BadRequest
from dflash_mlx.models.draft.build import draft_model
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.dflash import BoundDraft, DraftModel
from dflash_mlx.models.protocols import Target
from dflash_mlx.train.model.forward import head_rows

_DEVIATION = 0.02
"""Standard deviation of new matrices, as in GPT-2 and Transformers' `initializer_range`."""

_RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight")
"""Matrices that add to the residual stream. Their deviation is divided by the square root of
twice the number of layers, as in GPT-2, so that the stream does not grow with depth."""


def new_draft(config: DraftConfig, seed: int) -> DraftModel:
    """Return a draft with random weights in float32.

    Norms are 1. With a reduced vocabulary, the head is filled by `fill_reduced_head`.
    """
    names = {"lm_head.weight"} if config.draft_vocab_size else set()
    model = draft_model(config, names)
    flat = dict(tree_flatten(model.parameters()))
    keys = mx.random.split(mx.random.key(seed), len(flat))
    initial = [
        (name, _initial_value(name, array, config, key))
        for (name, array), key in zip(sorted(flat.items()), keys, strict=True)
    ]
    model.update(tree_unflatten(initial))
    mx.eval(model.parameters())
    return model


def _initial_value(name: str, array: mx.array, config: DraftConfig, key: mx.array) -> mx.array:
    if name == "d2t":
        return array
    if name.endswith("base_kernel"):
        # the identity: the first coefficient of the convolution belongs to the row itself
        return mx.zeros_like(array).at[:, 0].add(1.0)
    if name.endswith("kernel_projection.weight"):
        return mx.zeros_like(array)
    if array.ndim < 2:
        return mx.zeros_like(array) if "sink" in name else mx.ones_like(array)
    size = _DEVIATION
    if name.endswith(_RESIDUAL_OUTPUTS):
        size /= (2 * config.num_hidden_layers) ** 0.5
    return size * mx.random.normal(array.shape, key=key)


def normalize_logits(draft: BoundDraft) -> None:
    """Scale a new draft's final norm so that its logits have a standard deviation of 1.

    Heads of targets differ in scale by orders of magnitude. Without this, the first hundred
    steps reduce the confidence of random predictions.
    """
    model, size = draft.model, draft.model.config.hidden_size
    hidden = mx.random.normal((1, 64, size), key=mx.random.key(0))
    logits = draft.target.head(hidden).astype(mx.float32)
    if (deviation := float(np.std(np.array(logits)))) > 0:
        model.norm.weight = model.norm.weight / deviation


def with_reduced_vocabulary(model: DraftModel, size: int) -> DraftModel:
    """Return a copy of a draft with a vocabulary of `size` tokens and an empty head.

    Raises:
        BadRequest: the draft has its own head, or a selector over the whole vocabulary.
    """
    if "lm_head" in model or model.config.selector:
        raise BadRequest(
            "--draft-vocab reduces the head that a draft shares with its target, and the draft in "
            "--init has its own head or selector; leave out --draft-vocab"
        )
    names = {"lm_head.weight", *(["embed_tokens.weight"] if "embed_tokens" in model else [])}
    reduced = draft_model(replace(model.config, draft_vocab_size=size), names)
    reduced.update(model.parameters())
    return reduced


def fill_reduced_head(model: DraftModel, target: Target, counts: np.ndarray) -> None:
    """Set a draft's reduced vocabulary to the most frequent tokens, with the target's head rows.

    `counts` [V] are over the target's vocabulary. Token ids keep their order: draft id i is the
    target's i + d2t[i], as in speculators.
    """
    size = model.config.draft_vocab_size
    assert size is not None, "the draft has the target's vocabulary"
    ids = np.sort(np.argsort(-counts, kind="stable")[:size])
    offsets = mx.array(ids - np.arange(size), dtype=mx.int32)
    weight = head_rows(target, ids).astype(mx.float32)
    mx.eval(offsets, weight)
    model.update({"d2t": offsets, "lm_head": {"weight": weight}})
