"""What a conversion may be asked for, checked before anything is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_mlx.errors import BadRequest

MODES = {
    "affine": (4, 64),
    "mxfp4": (4, 32),
    "mxfp8": (8, 32),
    "nvfp4": (4, 16),
}
"""Bits and group size of each mode; affine takes others too, the rest are formats."""

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Quantization:
    """How the rows of a weight are packed: bits of an element, elements that share a scale."""

    bits: int
    group_size: int
    mode: str = "affine"

    def settings(self) -> dict[str, Any]:
        """The entry of a `config.json`, as mlx-lm reads it."""
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def __str__(self) -> str:
        shown = f"{self.bits} bits" if self.mode == "affine" else self.mode
        return f"{shown}, groups of {self.group_size}"


def quantization(bits: int | None, group_size: int | None, mode: str | None) -> Quantization:
    """Return the quantization that these flags mean together; None takes the mode's own value.

    Raises:
        BadRequest: a value out of range, or flags that contradict each other.
    """
    mode = mode or "affine"
    if mode not in MODES:
        raise BadRequest(f"mode is {mode!r}; it needs one of {', '.join(MODES)}")
    usual_bits, usual_group = MODES[mode]
    found = Quantization(
        usual_bits if bits is None else bits,
        usual_group if group_size is None else group_size,
        mode,
    )
    if mode != "affine" and found != Quantization(usual_bits, usual_group, mode):
        raise BadRequest(
            f"mode {mode} is {usual_bits} bits in groups of {usual_group}, and {found.bits} bits "
            f"in groups of {found.group_size} were asked for; leave out --bits and --group-size"
        )
    if mode == "affine" and found.bits not in _BITS:
        raise BadRequest(f"bits is {bits}; affine needs one of {_listed(_BITS)}")
    if mode == "affine" and found.group_size not in _GROUP_SIZES:
        raise BadRequest(f"group-size is {group_size}; affine needs one of {_listed(_GROUP_SIZES)}")
    return found


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


@dataclass(frozen=True)
class ConvertConfig:
    """One conversion: from where, to where, how packed, and what to check.

    `source` and `draft` are hub ids, folders or files. `recipe` names a recipe or a TOML file;
    None takes `uniform`, and `draft` for a draft whose bits nobody gave. `dequantize` undoes the
    source's quantization first; without bits, mode or recipe the result stays unquantized.
    `keep_undivided` leaves a weight unquantized where its rows do not split into groups.
    `shard_bytes` bounds one file of weights.
    """

    source: str
    out: Path | None = None
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    bits: int | None = None
    group_size: int | None = None
    mode: str | None = None
    dtype: str | None = None
    recipe: str | None = None
    dequantize: bool = False
    keep_undivided: bool = False
    verify: bool = True
    force: bool = False
    shard_bytes: int = 5_000_000_000

    def __post_init__(self) -> None:
        base = quantization(self.bits, self.group_size, self.mode)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise BadRequest(f"dtype is {self.dtype!r}; it needs one of {', '.join(DTYPES)}")
        if self.recipe not in (None, "uniform") and base.mode != "affine":
            raise BadRequest(
                f"recipe {self.recipe!r} mixes widths and mode {base.mode} has one; leave out one "
                "of --recipe and --mode"
            )
        if self.shard_bytes < 1:
            raise BadRequest(f"shard_bytes is {self.shard_bytes}; it needs 1 or more")
        if self.draft_revision and not self.draft:
            raise BadRequest("draft-revision needs --draft, which says what to take it from")

    @property
    def sets_quantization(self) -> bool:
        """Whether the caller said how weights are to be packed."""
        return any(
            value is not None for value in (self.bits, self.group_size, self.mode, self.recipe)
        )

    @property
    def base(self) -> Quantization:
        """The quantization of every weight that a recipe does not single out."""
        return quantization(self.bits, self.group_size, self.mode)

    def described(self) -> dict[str, Any]:
        """The options that shape the output, for the card."""
        kept = ("bits", "group_size", "mode", "dtype", "recipe", "dequantize", "keep_undivided")
        values = {name: getattr(self, name) for name in kept}
        return {name: value for name, value in values.items() if value not in (None, False)}
