"""The card of a trained draft: what it was trained for, on what, how, and what it reached."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_mlx.models.draft.config import DraftConfig


def card(
    name: str, facts: Mapping[str, Any], draft: DraftConfig, history: Sequence[Mapping[str, Any]]
) -> str:
    """Return the README of a result; `facts` are those of the run."""
    measured = [line for line in history if "sequential" in line]
    lines = ["---", *_front_matter(facts), "---", "", f"# {name}", ""]
    lines += [
        f"A DFlash draft for {facts['target']['name']}, made by `dflash-mlx train`: it guesses "
        "blocks of tokens, which its target verifies.",
        "",
        "```sh",
        f"dflash-mlx chat --model {facts['target']['name']} --draft {name}",
        "```",
        "",
        *_table(_provenance(facts, draft)),
        "",
    ]
    if measured:
        lines += [*_measured(measured, facts), ""]
    lines.append("`training.json` holds all of this for programs; `curves.html` shows the curves.")
    return "\n".join(lines) + "\n"


def _front_matter(facts: Mapping[str, Any]) -> list[str]:
    lines = ["library_name: mlx", "pipeline_tag: text-generation"]
    if facts["target"].get("revision"):
        lines.append(f"base_model: {facts['target']['name']}")
    return [*lines, "tags:", "- mlx", "- dflash", "- speculative-decoding"]


def _provenance(facts: Mapping[str, Any], draft: DraftConfig) -> Iterator[tuple[str, str]]:
    target, data, recipe = facts["target"], facts["data"], facts["recipe"]
    revision = f" at {target['revision'][:12]}" if target.get("revision") else ""
    yield "Target", f"{target['name']}{revision}"
    yield "Shape", _shape(draft, facts["parameters"])
    if facts.get("init"):
        yield "Begun from", facts["init"]
    yield "Data", _data(data)
    yield (
        "Thinking",
        {True: "on", False: "off", None: "the target has no such mode"}[facts["thinking"]],
    )
    yield (
        "Recipe",
        f"{facts['progress']['step']} of {recipe['steps']} steps of {recipe['sequences']} samples "
        f"with up to {recipe['anchors']} blocks each; AdamW, peak rate "
        f"{recipe['learning_rate']:g}, cosine; {_weights(recipe)}; "
        f"{recipe['distillation']:.0%} distillation from the target's distribution",
    )
    yield "Seed", str(recipe["seed"])
    yield "Made with", ", ".join(f"{key} {value}" for key, value in facts["made_with"].items())


def _shape(draft: DraftConfig, n_parameters: int) -> str:
    second = ", DFlash 2" if draft.selector else ""
    reduced = f", {draft.draft_vocab_size} tokens of its own" if draft.draft_vocab_size else ""
    taps = ", ".join(str(tap) for tap in draft.target_layer_ids)
    return (
        f"{draft.num_hidden_layers} layers, {n_parameters / 1e6:.1f}M parameters, block "
        f"{draft.block_size}, taps {taps}, mask token {draft.mask_token_id}{second}{reduced}"
    )


def _data(data: Mapping[str, Any]) -> str:
    said = [f"{data['source']}: {data['n_samples']} samples, {data['answer_tokens']} answer tokens"]
    if data["answers"]:
        said.append(f"answers written by the target, {data['answers']}")
    if data["dropped"]:
        said.append(data["dropped"])
    return "; ".join([*said, f"{data['n_held_out']} more held out"])


def _weights(recipe: Mapping[str, Any]) -> str:
    if recipe["weighting"] == "fixed":
        return f"slot k weighs exp(-(k-1)/{recipe['decay']:g})"
    return "slots weigh by D-PACE"


def _measured(measured: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the best measurement found, and how it came about."""
    best = max(measured, key=lambda line: line["sequential"]["tokens_per_round"])
    found = best["sequential"]
    yield "## Measured"
    yield ""
    yield (
        f"Greedy decoding of held-out prompts with blocks of {found['block']}: "
        f"**{found['tokens_per_round']:.2f} tokens a round** ({found['tokens']} tokens, "
        f"{found['rounds']} rounds), in {facts['computed_in']} on {facts['machine']}; stored in "
        "bfloat16."
    )
    yield ""
    yield "| kind | tokens a round |"
    yield "|---|---|"
    yield from (f"| {kind} | {value:.2f} |" for kind, value in found["by_kind"].items())
    yield ""
    positions = " ".join(f"{share:.2f}" for share in found["accepted_by_position"])
    yield f"Accepted by position: {positions}."
    if best.get("anchors"):
        anchors = best["anchors"]
        yield (
            f"Over {anchors['anchors']} anchors drawn evenly from held-out answers: "
            f"{anchors['tokens_per_round']:.2f}, which flatters; a draft is chosen by the first."
        )
    if len(measured) > 1:
        yield ""
        yield "| step | tokens learned from | tokens a round, decoding | by anchors |"
        yield "|---|---|---|---|"
        for line in measured:
            by_anchors = f"{line['anchors']['tokens_per_round']:.2f}" if line.get("anchors") else ""
            decoding = f"{line['sequential']['tokens_per_round']:.2f}"
            yield f"| {line['step']} | {line['tokens']} | {decoding} | {by_anchors} |"


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]
