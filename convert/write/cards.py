"""Writes what accompanies the weights: configuration, index, side files, README and pair card.

An unchanged conversion copies the card and the README of its source, so that converting an output
again gives the same folder and keeps the record of its origin.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.sources.location import known_repository
from dflash_mlx.convert.sources.side_files import REPORT, side_files, write_side_files
from dflash_mlx.convert.write.destination import default_name
from dflash_mlx.convert.write.model_card import model_card
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.pairs import manifest, registry
from dflash_mlx.pairs.manifest import Manifest, Origin, draft_facts, target_facts
from dflash_mlx.pairs.model_files import INDEX, is_complete
from dflash_mlx.system.foreign import reading

_KEPT_IF_UNCHANGED = ("README.md", manifest.FILE, REPORT)


def write_cards(
    jobs: Sequence[ConversionJob], config: ConvertConfig, folder: Path, hashes: Mapping[str, str]
) -> None:
    """Write everything except weights and report; `hashes` maps each shard's path to its SHA-256.

    Raises:
        BadCheckpoint: a side file of the source is a broken link.
        OSError: the disk is full or fails.
    """
    source_cards: dict[str, str] = {}
    for job in jobs:
        place = folder / job.folder
        write_side_files(side_files(job.source), place)
        write_table(place / "config.json", job.config)
        write_table(place / INDEX, shard_index(job))
        source_cards[job.folder] = _source_card(job)
    if source := unchanged_source(jobs):
        for file in ("README.md", manifest.FILE):
            shutil.copyfile(source / file, folder / file)
        return
    (folder / "README.md").write_text(
        model_card(jobs, config, default_name(jobs), source_cards),
        encoding="utf-8",
        errors="backslashreplace",  # names of files may be other bytes than UTF-8
    )
    _manifest(jobs, config, folder, hashes).write(folder)


def unchanged_source(jobs: Sequence[ConversionJob]) -> Path | None:
    """Return the converted folder that `jobs` copy bit for bit; None if they change anything."""
    first = jobs[0].source.folder
    if first is None or not all((first / file).is_file() for file in _KEPT_IF_UNCHANGED):
        return None
    same = all(
        job.copies_source and job.source.folder == (first / job.folder if job.folder else first)
        for job in jobs
    )
    return first if same else None


def shard_index(job: ConversionJob) -> dict[str, Any]:
    """Return the index of a job's shards."""
    return {
        "metadata": {"total_size": job.plan.n_bytes},
        "weight_map": {
            part.name: shard.name
            for shard in job.plan.shards
            for output in shard.outputs
            for part in output.parts
        },
    }


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as JSON; equal tables give equal bytes."""
    text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def _source_card(job: ConversionJob) -> str:
    path = job.source.folder / "README.md" if job.source.folder else None
    return path.read_text(encoding="utf-8", errors="replace") if path and path.is_file() else ""


def _manifest(
    jobs: Sequence[ConversionJob], config: ConvertConfig, folder: Path, hashes: Mapping[str, str]
) -> Manifest:
    found: dict[str, Any] = {}
    for job in jobs:
        location = job.source.location
        prefix = f"{job.folder}/" if job.folder else ""
        origin = Origin(
            source=location.name,
            revision=location.revision,
            date=location.date,
            options=config.described(),
            bits=job.plan.bits_by_role(),
            shards={shard.name: hashes[prefix + shard.name] for shard in job.plan.shards},
        )
        if job.draft:
            found |= {"draft": draft_facts(job.draft), "draft_origin": origin}
        else:
            found |= {"target": target_facts(job.config, folder), "target_origin": origin}
    return Manifest(**found, thinking=_thinking(jobs))


def _thinking(jobs: Sequence[ConversionJob]) -> bool | None:
    """Return the thinking mode that the draft was trained with, from cards or the registry."""
    folders = [job.source.location.folder for job in jobs]
    found = [manifest.trained_thinking(folders[0], folders[1] if len(folders) > 1 else None)]
    for job in reversed(jobs):
        name = job.source.location.name
        known = registry.card_of_draft(name) if job.draft else registry.card_for(name)
        found.append(known.thinking if known else None)
    return next((thinking for thinking in found if thinking is not None), None)


def is_conversion_of(folder: Path, config: ConvertConfig) -> bool:
    """Return whether `folder` is a finished conversion of a hub source with these options.

    Local sources have no revision, so a folder cannot be recognised as their conversion.
    """
    if not folder.is_dir() or not is_complete(folder):
        return False
    try:
        with reading(folder / manifest.FILE, "the pair card"):
            card = Manifest.read(folder)
            if card is None or (config.draft is not None) != (card.draft_origin is not None):
                return False
            origin = card.target_origin or card.draft_origin
            return (
                origin is not None
                and origin.source == known_repository(config.source)
                and origin.revision is not None
                and config.revision in (None, origin.revision)
                and dict(origin.options) == config.described()
            )
    except BadCheckpoint:
        return False
