"""A trained draft as a folder that `chat --draft` and `convert` take; whole, or not there."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash_mlx.errors import BadRequest
from dflash_mlx.models.draft.config_file import read_draft_config
from dflash_mlx.pairs.manifest import Manifest, Origin, draft_facts
from dflash_mlx.train.card import card
from dflash_mlx.train.checkpoint import replace_file
from dflash_mlx.train.curves import curves

RECORD = "training.json"
_CODEBOOKS = ("predecessor_codebook.weight", "successor_codebook.weight")


def check_out(out: Path, force: bool) -> None:
    """Check that `out` may be written: it is absent, empty, a result of ours, or given up.

    Raises:
        BadRequest: it is something else.
    """
    if not os.path.lexists(out):
        return
    if out.is_symlink() or not out.is_dir():
        raise BadRequest(f"{out} is no folder; choose another with -o")
    if not any(out.iterdir()) or (out / RECORD).is_file():
        return
    if not force:
        raise BadRequest(
            f"{out} exists and is no result of training; choose another with -o, or replace it "
            "with --force"
        )
    if not (out / "config.json").is_file():
        raise BadRequest(f"{out} holds something other than a model; --force replaces models only")


def publish(
    out: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, mx.array],
    facts: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> None:
    """Write the result into `out`, replacing what `check_out` allowed to be there.

    `config` is the draft's `config.json`, `weights` are stored in bfloat16.

    Raises:
        DFlashError: the disk is full; what was there before is as it was.
        BadRequest: `out` became something that may not be replaced.
    """
    partial, replaced = (out.with_name(f".{out.name}.{word}") for word in ("partial", "replaced"))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    draft = read_draft_config(config)
    try:
        _write_json(partial / "config.json", config)
        stored = {_stored_name(name): _stored(array) for name, array in weights.items()}
        replace_file(
            partial / "model.safetensors",
            lambda file: mx.save_safetensors(str(file), stored, {"format": "mlx"}),
        )
        _write_json(partial / RECORD, {**facts, "history": list(history)})
        _write(partial / "README.md", card(out.name, facts, draft, history))
        title = f"{out.name}: a draft for {facts['target']['name']}"
        _write(partial / "curves.html", curves(title, described(facts), history))
        origin = Origin(source="dflash-mlx train", options={"seed": facts["recipe"]["seed"]})
        Manifest(draft=draft_facts(draft), draft_origin=origin, thinking=facts["thinking"]).write(
            partial
        )
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if out.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        out.rename(replaced)
    partial.rename(out)
    shutil.rmtree(replaced, ignore_errors=True)


def described(facts: Mapping[str, Any]) -> str:
    """Return a line on what was trained, for a person to read."""
    data = facts["data"]
    return (
        f"{facts['parameters'] / 1e6:.1f}M parameters for {facts['target']['name']}; "
        f"{data['n_samples']} samples, {data['answer_tokens']} answer tokens; {facts['machine']}; "
        + ", ".join(f"{key} {value}" for key, value in facts["made_with"].items())
    )


def _stored_name(name: str) -> str:
    """Return the published name of a tensor: codebooks are bare arrays there."""
    return name.removesuffix(".weight") if name.endswith(_CODEBOOKS) else name


def _stored(array: mx.array) -> mx.array:
    return array.astype(mx.bfloat16) if mx.issubdtype(array.dtype, mx.floating) else array


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    _write(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write(file: Path, text: str) -> None:
    replace_file(file, lambda partial: partial.write_text(text, encoding="utf-8"))
