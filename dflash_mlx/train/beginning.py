"""The weights a new draft begins with.

Matrices are drawn from a normal distribution of deviation 0.02. Those that write to the residual
stream are smaller by the square root of twice the layers, so that its size does not grow with
depth. Norms are one. The projection of the taps needs no size of its own, for the norm behind it
takes that away; a random one keeps the directions of every tap, while an average of taps would
keep those of the largest.
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
from dflash_mlx.train.head import head_rows

_DEVIATION = 0.02
_INTO_THE_STREAM = ("o_proj.weight", "down_proj.weight")


def new_draft(config: DraftConfig, seed: int) -> DraftModel:
    """Return a draft to be trained, in float32; a reduced vocabulary's head is yet to be filled."""
    names = {"lm_head.weight"} if config.draft_vocab_size else set()
    model = draft_model(config, names)
    flat = dict(tree_flatten(model.parameters()))
    keys = mx.random.split(mx.random.key(seed), len(flat))
    begun = [
        (name, _first(name, array, config, key))
        for (name, array), key in zip(sorted(flat.items()), keys, strict=True)
    ]
    model.update(tree_unflatten(begun))
    mx.eval(model.parameters())
    return model


def _first(name: str, array: mx.array, config: DraftConfig, key: mx.array) -> mx.array:
    if name == "d2t":
        return array
    if name.endswith("base_kernel"):
        # the first tap is the row itself: a convolution that changes nothing yet
        return mx.zeros_like(array).at[:, 0].add(1.0)
    if name.endswith("kernel_projection.weight"):
        return mx.zeros_like(array)
    if array.ndim < 2:
        return mx.zeros_like(array) if "sink" in name else mx.ones_like(array)
    size = _DEVIATION
    if name.endswith(_INTO_THE_STREAM):
        size /= (2 * config.num_hidden_layers) ** 0.5
    return size * mx.random.normal(array.shape, key=key)


def settle_logits(draft: BoundDraft) -> None:
    """Let a new draft's logits begin with a deviation of one, whatever the size of the head.

    Heads differ in size by orders of magnitude; under a norm of one, the first hundred steps
    would go into unlearning their sharpest guesses.
    """
    model, size = draft.model, draft.model.config.hidden_size
    hidden = mx.random.normal((1, 64, size), key=mx.random.key(0))
    logits = draft.target.head(hidden).astype(mx.float32)
    if (spread := float(np.std(np.array(logits)))) > 0:
        model.norm.weight = model.norm.weight / spread


def cut_vocabulary(model: DraftModel, size: int) -> DraftModel:
    """Return a draft like `model` with a vocabulary of `size` tokens, its head yet to be filled.

    Raises:
        BadRequest: `model` has a head of its own, or a selector over the whole vocabulary.
    """
    if "lm_head" in model or model.config.selector:
        raise BadRequest(
            "--draft-vocab cuts the head that a draft borrows from its target, and this one has "
            "a head or a selector of its own; leave out --draft-vocab"
        )
    names = {"lm_head.weight", *(["embed_tokens.weight"] if "embed_tokens" in model else [])}
    made = draft_model(replace(model.config, draft_vocab_size=size), names)
    made.update(model.parameters())
    return made


def reduce_vocabulary(model: DraftModel, target: Target, counts: np.ndarray) -> None:
    """Give `model` the head of the tokens that are counted most often, as the target has it.

    `counts` [V] are over the target's vocabulary. Ids keep their order, as in `d2t` of
    speculators: draft id i means the target's i + d2t[i].
    """
    size = model.config.draft_vocab_size
    assert size is not None, "the draft has the target's vocabulary"
    ids = np.sort(np.argsort(-counts, kind="stable")[:size])
    offsets = mx.array(ids - np.arange(size), dtype=mx.int32)
    weight = head_rows(target, ids).astype(mx.float32)
    mx.eval(offsets, weight)
    model.update({"d2t": offsets, "lm_head": {"weight": weight}})
