"""`pair.json`: the target, the draft and their sources in a folder that `convert` wrote.

A mismatch with the models in the folder means that files of two conversions were mixed, which
tensor shapes do not show. It must not read weights.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from dflash_mlx.errors import BadCheckpoint, PairMismatch
from dflash_mlx.models.draft.config import DraftConfig
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.system.foreign import quoted, reading
from dflash_mlx.system.json_file import read_json

FILE = "pair.json"
FORMAT = 1
DRAFT_FOLDER = "draft"
"""Folder of the draft inside its target's folder."""


@dataclass(frozen=True)
class Origin:
    """The source of weights and how they were converted.

    `date` is the date of the source, `bits` the average bits per weight by role, and `shards` the
    SHA-256 of each weight file.
    """

    source: str
    revision: str | None = None
    date: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    bits: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetFacts:
    """Properties of a target that its draft depends on; `tokenizer` is a hash or None."""

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    tokenizer: str | None = None


@dataclass(frozen=True)
class DraftFacts:
    """Properties of a draft that target and decode loop depend on; see `DraftConfig`."""

    hidden_size: int
    feature_size: int
    vocab_size: int
    num_target_layers: int | None
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    layer_types: tuple[str, ...]
    in_block_causal: tuple[bool, ...]
    sliding_window: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of `pair.json`. `thinking` is the mode the draft was trained for, or None."""

    target: TargetFacts | None = None
    target_origin: Origin | None = None
    draft: DraftFacts | None = None
    draft_origin: Origin | None = None
    thinking: bool | None = None

    def write(self, folder: Path) -> None:
        """Write `pair.json` into `folder`."""
        table = {"format": FORMAT, **asdict(self)}
        text = json.dumps(table, indent=2, sort_keys=True, default=dict)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the manifest in `folder`, None if there is none.

        Raises:
            BadCheckpoint: the file is not a manifest.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        with reading(path, "the pair manifest", "convert the pair again"):
            table = read_json(path)
            if table["format"] != FORMAT:
                raise BadCheckpoint(
                    f"{path} has format {quoted(table['format'])} and this version reads {FORMAT}; "
                    "update dflash-mlx"
                )
            if not isinstance(table["thinking"], bool | None):
                raise TypeError(f"thinking is {quoted(table['thinking'])}")
            return cls(
                target=_read(TargetFacts, table["target"]),
                target_origin=_read(Origin, table["target_origin"]),
                draft=_read(DraftFacts, table["draft"]),
                draft_origin=_read(Origin, table["draft_origin"]),
                thinking=table["thinking"],
            )

    def check(self, target: TargetFacts | None, draft: DraftFacts | None, source: str) -> None:
        """Check that the models in a folder are the ones the manifest describes.

        Raises:
            PairMismatch: a field differs; the message has both values.
        """
        for kind, stated, found in (("target", self.target, target), ("draft", self.draft, draft)):
            if stated is None or found is None:
                continue
            for item in fields(stated):
                expected, actual = getattr(stated, item.name), getattr(found, item.name)
                if expected != actual:
                    raise PairMismatch(
                        f"{source}/{FILE} states {item.name} {quoted(expected)} for its {kind}, "
                        f"and the files have {quoted(actual)}; files of two conversions are mixed, "
                        "convert again"
                    )


def _read(kind: type[Any], table: Any) -> Any:
    """Return the dataclass `kind` that a JSON object describes, None for null.

    Raises:
        TypeError: a field is missing, unknown, or of another type than declared.
    """
    if table is None:
        return None
    if not isinstance(table, dict):
        raise TypeError(f"{kind.__name__} is {quoted(table)}")
    types = get_type_hints(kind)
    values = {name: tuple(item) if isinstance(item, list) else item for name, item in table.items()}
    for name, value in values.items():
        if name in types and not _is_a(value, types[name]):
            raise TypeError(f"{name} is {quoted(value)}")
    return kind(**values)


def _is_a(value: Any, declared: Any) -> bool:
    """Return whether a JSON value has a declared type: a scalar, a union, a tuple or a mapping."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is UnionType:
        return any(_is_a(value, choice) for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(item, arguments[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_is_a(item, arguments[1]) for item in value.values())
    if declared is Any:
        return True
    if declared is float:
        return type(value) in (int, float)
    return type(value) is declared


def target_facts(config: Mapping[str, Any], folder: Path) -> TargetFacts:
    """Return the facts of the target in `folder`, whose `config.json` is `config`.

    Raises:
        BadCheckpoint: the configuration lacks a size.
    """
    inner = config.get("text_config") or config

    def whole(key: str) -> int:
        value = inner.get(key, config.get(key))
        if not isinstance(value, int):
            raise BadCheckpoint(
                f"{folder}/config.json: {key} is {quoted(value)}; it needs a whole number"
            )
        return value

    return TargetFacts(
        architecture=str(config.get("model_type")),
        hidden_size=whole("hidden_size"),
        num_hidden_layers=whole("num_hidden_layers"),
        vocab_size=whole("vocab_size"),
        tokenizer=tokenizer_hash(folder),
    )


def draft_facts(config: DraftConfig) -> DraftFacts:
    """Return the facts of a draft."""
    return DraftFacts(
        feature_size=config.feature_size,
        **{
            item.name: getattr(config, item.name)
            for item in fields(DraftFacts)
            if item.name != "feature_size"
        },
    )


def check_manifest(target: Path, draft: Path | None) -> None:
    """Check a target, and a draft inside its folder, against the manifest in the folder.

    A draft from another folder is not described there; its shapes are checked at loading.

    Raises:
        PairMismatch: the manifest describes other models; the message names the field.
        BadCheckpoint: the manifest or a configuration cannot be read.
    """
    card = Manifest.read(target) if target.is_dir() else None
    if card is None:
        return
    card.check(
        target_facts(read_json(target / "config.json"), target),
        draft_facts(read_draft_config(read_json(draft / "config.json")))
        if draft and _inside(draft, target)
        else None,
        str(target),
    )


def trained_thinking(target: Path, draft: Path | None) -> bool | None:
    """Return the thinking mode that a draft was trained for, None if no manifest states it.

    The target's manifest describes the draft inside its folder; a draft from another folder has
    its own manifest or none.

    Raises:
        BadCheckpoint: a manifest cannot be read.
    """
    owner = draft if draft and not _inside(draft, target) else target
    card = Manifest.read(owner) if owner.is_dir() else None
    return card.thinking if card else None


def _inside(draft: Path, target: Path) -> bool:
    """Return whether a draft is the one inside its target's folder."""
    return draft.resolve() == (target / DRAFT_FOLDER).resolve()


def tokenizer_hash(folder: Path) -> str | None:
    """Return the SHA-256 of the tokenizer file in `folder`, None without one."""
    for name in ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json"):
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return None
