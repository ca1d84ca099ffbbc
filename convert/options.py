"""Options of a conversion, checked before anything is read. It must not know checkpoints."""

from collections.abc import Mapping
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
"""Default bits and group size of each mode; the modes other than affine allow no others."""

_AFFINE_BITS = (2, 3, 4, 5, 6, 8)
_AFFINE_GROUP_SIZES = (32, 64, 128)
DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Quantization:
    """How a weight is quantized: bits per element, and elements of a row that share a scale."""

    bits: int
    group_size: int
    mode: str = "affine"

    def settings(self) -> dict[str, Any]:
        """Return the entry of a `config.json`, as mlx-lm reads it."""
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def __str__(self) -> str:
        form = f"{self.bits} bits" if self.mode == "affine" else self.mode
        return f"{form} in groups of {self.group_size}"


def quantization(bits: int | None, group_size: int | None, mode: str | None) -> Quantization:
    """Return the quantization that these options request; None takes the mode's default.

    Raises:
        BadRequest: a value is out of range, or options contradict each other.
    """
    mode = mode or "affine"
    if mode not in MODES:
        raise BadRequest(f"mode is {mode!r}; it needs one of {', '.join(MODES)}")
    default_bits, default_group = MODES[mode]
    found = Quantization(
        default_bits if bits is None else bits,
        default_group if group_size is None else group_size,
        mode,
    )
    if mode != "affine" and found != Quantization(default_bits, default_group, mode):
        raise BadRequest(
            f"mode {mode} has {default_bits} bits in groups of {default_group}, and the options "
            f"request {found.bits} bits in groups of {found.group_size}; leave out --bits and "
            "--group-size"
        )
    if mode == "affine" and found.bits not in _AFFINE_BITS:
        raise BadRequest(f"bits is {bits}; affine needs one of {_listed(_AFFINE_BITS)}")
    if mode == "affine" and found.group_size not in _AFFINE_GROUP_SIZES:
        raise BadRequest(
            f"group-size is {group_size}; affine needs one of {_listed(_AFFINE_GROUP_SIZES)}"
        )
    return found


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def is_quantization(entry: Mapping[str, Any]) -> bool:
    """Return whether a table holds bits, group size and mode in a combination of MLX."""
    bits, group_size, mode = entry.get("bits"), entry.get("group_size"), entry.get("mode", "affine")
    if type(bits) is not int or type(group_size) is not int or not isinstance(mode, str):
        return False
    if mode == "affine":
        return bits in _AFFINE_BITS and group_size in _AFFINE_GROUP_SIZES
    return MODES.get(mode) == (bits, group_size)


@dataclass(frozen=True)
class ConvertConfig:
    """One conversion: what to convert, where to write it, how to quantize it.

    Args:
        source: hub id, known name, folder or file of the model.
        out: output folder; None derives a name from source and recipe, in the current folder.
        draft: draft to convert into the same output; "auto" takes the draft of the known pair.
        revision: commit or branch of `source` on the hub.
        draft_revision: commit or branch of `draft` on the hub.
        bits: bits per weight; None takes the default of the mode.
        group_size: elements that share a scale; None takes the default of the mode.
        mode: affine, mxfp4, mxfp8 or nvfp4; None is affine.
        dtype: type of unquantized tensors and scales; None keeps the source's.
        recipe: name of a recipe or of a TOML file; None is uniform, or draft for a draft
            without bits, group size and mode.
        dequantize: undo the source's quantization first; without bits, group size, mode and
            recipe the result stays unquantized.
        keep_undivided: leave a weight unquantized if groups do not divide its rows.
        verify: compare the result with the source.
        force: replace a model in the output folder.
        keep_original: download a source from the hub completely into the hub cache and keep it;
            otherwise its shards are downloaded, converted and deleted one at a time.
        shard_bytes: largest size of one file of weights, in bytes.

    Raises:
        BadRequest: a value is out of range, or options contradict each other.
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
    keep_original: bool = False
    shard_bytes: int = 5_000_000_000

    def __post_init__(self) -> None:
        base = quantization(self.bits, self.group_size, self.mode)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise BadRequest(f"dtype is {self.dtype!r}; it needs one of {', '.join(DTYPES)}")
        if self.recipe not in (None, "uniform") and base.mode != "affine":
            raise BadRequest(
                f"recipe {self.recipe!r} mixes numbers of bits and mode {base.mode} has one; leave "
                "out --recipe or --mode"
            )
        if self.shard_bytes < 1:
            raise BadRequest(f"shard_bytes is {self.shard_bytes}; it needs 1 or more")
        if self.draft_revision and not self.draft:
            raise BadRequest("draft-revision needs --draft, which names the repository")

    @property
    def sets_quantization(self) -> bool:
        """Whether bits, group size, mode or recipe are given."""
        return any(
            value is not None for value in (self.bits, self.group_size, self.mode, self.recipe)
        )

    @property
    def base(self) -> Quantization:
        """The quantization of every weight without an entry in the recipe."""
        return quantization(self.bits, self.group_size, self.mode)

    def described(self) -> dict[str, Any]:
        """Return the options that determine the output, for the model card."""
        names = ("bits", "group_size", "mode", "dtype", "recipe", "dequantize", "keep_undivided")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, False)}
