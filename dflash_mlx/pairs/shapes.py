"""What a known pair's memory and speed depend on: weights, caches, state, acceptance.

It must not know machines. The values are data (`shapes.toml`), each table with its source.
"""

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from types import MappingProxyType

from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.pairs.card import PairCard

_GROUP_BITS = 0.5
"""Bits per weight of the scale and bias of a group: two 16-bit numbers for 64 weights."""

_CACHE_ITEM_BYTES = 2
"""Caches hold 16-bit values on Metal."""


@dataclass(frozen=True)
class PairShape:
    """Caches and published acceptance of one pair; see `shapes.toml` for the fields.

    `bound` marks caches that are an upper bound instead of values read from a configuration.
    `draft_bytes` are those of a 16-bit draft, where the card has another size.
    `latent_row_bytes` are the bytes per token of a target with latent attention, over all layers.
    """

    context_length: int
    source: str
    full_layers: int = 0
    window_layers: int = 0
    window: int = 0
    kv_heads: int = 0
    head_size: int = 0
    latent_row_bytes: int = 0
    state_bytes: int = 0
    bound: bool = False
    parameters: int | None = None
    active_parameters: int | None = None
    published_bytes: int | None = None
    published_bits: int | None = None
    draft_bytes: int | None = None
    draft_full_layers: int = 0
    draft_window_layers: int = 0
    draft_window: int = 0
    draft_kv_heads: int = 0
    draft_head_size: int = 0
    tokens_per_round: tuple[float, float] | None = None
    tokens_source: str | None = None

    def cache_bytes(self, n_tokens: int) -> int:
        """Return the bytes of both models' caches with `n_tokens` tokens."""
        row = 2 * self.kv_heads * self.head_size * _CACHE_ITEM_BYTES
        draft_row = 2 * self.draft_kv_heads * self.draft_head_size * _CACHE_ITEM_BYTES
        rows = self.full_layers * n_tokens + self.window_layers * min(n_tokens, self.window)
        draft_rows = self.draft_full_layers * n_tokens
        draft_rows += self.draft_window_layers * min(n_tokens, self.draft_window)
        latent = self.latent_row_bytes * n_tokens
        return row * rows + draft_row * draft_rows + latent + self.state_bytes


@cache
def shapes() -> MappingProxyType[str, PairShape]:
    """Return the shapes of known pairs by nickname.

    Raises:
        BadCheckpoint: the data of this installation is malformed.
    """
    file = resources.files("dflash_mlx.pairs") / "shapes.toml"
    known = {item.name for item in fields(PairShape)}
    found = {}
    for nickname, values in tomllib.loads(file.read_text(encoding="utf-8")).items():
        if unknown := values.keys() - known:
            raise BadCheckpoint(
                f"shapes.toml: {nickname} has unknown keys {sorted(unknown)}; reinstall dflash-mlx"
            )
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        found[nickname] = PairShape(**{**values, **lists})
    return MappingProxyType(found)


@dataclass(frozen=True)
class PairFacts:
    """The sizes of a pair, from its card and its shape.

    Args:
        parameters: weights of the target; None if it is published in fewer than 16 bits.
        published_bytes: bytes of such a target.
        published_bits: about the bits per weight of such a target.
        active_share: weights read per token, as a share of all.
        draft_parameters: weights of the draft.
    """

    shape: PairShape
    block_size: int
    parameters: int | None
    published_bytes: int | None
    published_bits: int
    active_share: float
    draft_parameters: int

    @property
    def experts(self) -> bool:
        """Return whether a token reads only some of the weights."""
        return self.active_share < 1

    @property
    def n_weights(self) -> float:
        """Return the number of weights of the target."""
        if self.parameters is not None:
            return self.parameters
        return 8 * (self.published_bytes or 0) / self.published_bits

    def target_bytes(self, bits: int) -> int:
        """Return the bytes of the target's weights at `bits` bits."""
        if self.published_bytes is not None:
            return self.published_bytes
        assert self.parameters is not None
        return weight_bytes(self.parameters, bits)


def facts_of(card: PairCard, shape: PairShape | None) -> PairFacts | str:
    """Return the facts of a pair, or the reason why they are incomplete."""
    if shape is None:
        return "the shape of its caches is not recorded"
    published = shape.published_bytes or card.target_bytes
    parameters = shape.parameters or card.parameters
    if published is None and parameters is None:
        return "its card does not state the size of the target"
    draft_bytes = shape.draft_bytes or card.draft_bytes
    if draft_bytes is None or card.block_size is None:
        return "its card does not state the size of the draft"
    share = 1.0
    if shape.active_parameters is not None:
        total = parameters or 8 * (published or 0) / (shape.published_bits or 16)
        share = min(1.0, shape.active_parameters / total)
    return PairFacts(
        shape,
        card.block_size,
        None if published is not None else parameters,
        published,
        shape.published_bits or 16,
        share,
        draft_bytes // 2,
    )


def weight_bytes(parameters: int, bits: int) -> int:
    """Return the bytes of weights at `bits` bits, scales and biases included."""
    return round(parameters * (bits if bits == 16 else bits + _GROUP_BITS) / 8)
