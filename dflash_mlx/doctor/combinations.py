"""Findings about combinations of target, draft and machine that are known to be slow or wrong."""

from collections.abc import Iterator

import mlx.core as mx

from dflash_mlx.doctor.checkup import Finding
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.compute import parameters
from dflash_mlx.models.draft.dflash import BoundDraft

_EMULATED = ("Apple M1", "Apple M2")
"""Chips without native bfloat16 arithmetic (Apple GPU generations 13 and 14)."""


def check_combination(loaded: LoadedPair, chip: str) -> Iterator[Finding]:
    """Check a pair, with or without weights, on a machine with this chip."""
    draft = loaded.pair.draft
    if not isinstance(draft, BoundDraft):
        return
    kinds = {array.dtype for array in parameters(draft.model).values()}
    packed = mx.uint32 in kinds
    if mx.float16 in kinds and not packed:
        yield Finding(
            "draft precision",
            "advice",
            "the draft is in float16, where its activations overflow and no token is accepted",
            "convert it: dflash-mlx convert --dtype bfloat16",
        )
    if loaded.compute.device == "cpu":
        return
    if loaded.quantized and not packed:
        yield Finding(
            "draft precision",
            "advice",
            "a 16-bit draft takes a large share of each round of a quantized target",
            "convert the draft: dflash-mlx convert --bits 4",
        )
    if mx.bfloat16 in kinds and chip.startswith(_EMULATED) and not packed:
        yield Finding(
            "draft precision",
            "advice",
            f"{chip} emulates bfloat16, so this draft is slow",
            "convert the draft: dflash-mlx convert --bits 4",
        )
