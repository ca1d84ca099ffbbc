"""The model card of a converted folder: its origin, how it was converted, how to use it."""

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_mlx.convert.options import ConvertConfig
from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.sources.side_files import SOURCE_CARD

_HUB_KEYS = ("license", "license_name", "license_link", "language")


def model_card(
    jobs: Sequence[ConversionJob], config: ConvertConfig, name: str, source_cards: Mapping[str, str]
) -> str:
    """Return the output's README; `source_cards` are the sources' cards by folder of the job."""
    lines = ["---", *_front_matter(jobs, source_cards), "---", "", f"# {name}", ""]
    for job in jobs:
        lines += [*_provenance(job, config), ""]
    lines += [*_usage(jobs, name), ""]
    if any(source_cards.values()):
        lines += [f"The source's model card is [{SOURCE_CARD}]({SOURCE_CARD}).", ""]
    return "\n".join(lines)


def _front_matter(jobs: Sequence[ConversionJob], source_cards: Mapping[str, str]) -> list[str]:
    """Return the metadata of the hub's model page, with the source's licence and language."""
    lines = ["library_name: mlx", "pipeline_tag: text-generation", "tags:", "- mlx"]
    if any(job.draft for job in jobs):
        lines += ["- dflash", "- speculative-decoding"]
    first = jobs[0]
    if first.source.location.revision:
        lines.append(f"base_model: {first.source.name}")
    card = source_cards.get(first.folder, "")
    header = card.split("---")[1] if card.startswith("---") and card.count("---") > 1 else ""
    copied = False
    for line in header.splitlines():
        continues = line.startswith((" ", "-"))
        copied = copied if continues else line.partition(":")[0] in _HUB_KEYS
        if copied:
            lines.append(line)
    return lines


def _provenance(job: ConversionJob, config: ConvertConfig) -> list[str]:
    location, plan = job.source.location, job.plan
    facts: dict[str, Any] = {
        "Kind": job.source.kind,
        "Source": location.name,
        "Revision": location.revision or "none (a local copy)",
        "Date of the source": location.date or "unknown",
        "Format of the source": job.source.form,
        "Recipe": job.recipe.name if job.recipe else "none, weights unchanged",
        "Options": ", ".join(f"{key} {value}" for key, value in config.described().items())
        or "defaults",
        "Bits per weight": f"{plan.bits_per_weight:.3f}",
        "Bits by role": ", ".join(f"{role} {bits:g}" for role, bits in plan.bits_by_role().items()),
    }
    if plan.left_plain:
        facts["Left unquantized"] = ", ".join(plan.left_plain)
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())]


def _usage(jobs: Sequence[ConversionJob], name: str) -> list[str]:
    kinds = {bool(job.draft) for job in jobs}
    if kinds == {True, False}:
        lines = ["A target and its draft for speculative decoding:"]
        command = f"dflash-mlx chat --model {name}"
    elif kinds == {True}:
        lines = ["A draft for speculative decoding with its target:"]
        command = f"dflash-mlx chat --model TARGET --draft {name}"
    else:
        lines = ["A target model for MLX:"]
        command = f"dflash-mlx chat --model {name}\nmlx_lm.generate --model {name} --prompt Hello"
    made = (
        "Made by `dflash-mlx convert`. `conversion.json` lists the error of each tensor, "
        "`pair.json` the origin and the SHA-256 of each file."
    )
    return [*lines, "", "```sh", command, "```", "", made]
