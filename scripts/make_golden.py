"""Write `tests/golden/`: small random drafts and the official implementation's outputs.

Run it where PyTorch and the official package are installed (never needed to run the tests):

    pip install 'dflash[local]==0.1.0' && pip install --no-deps 'mlx[cpu]' mlx-cpu mlx-lm
    python scripts/make_golden.py

Each case is a folder `tests/golden/NAME/`:

    config.json           as published drafts spell it; read by the official loader itself
    model.safetensors     the draft's weights, float16, published names
    golden.safetensors    per round R, float32 arithmetic throughout:
        R.features   [S, layers * hidden] new context rows, float16
        R.block      [B]                  anchor token, then mask tokens
        R.hidden     [B - 1, hidden]      rows 1.. after the final norm
        R.logits     [B - 1, vocabulary]  first and last round only: a function of hidden
        R.tokens     [B - 1]              greedy draft tokens (DFlash 2: the selector's path)
      and for DFlash 2, at the case's temperature:
        R.candidates [B - 1, top_k]       candidate ids of the selector, ascending
        R.path       [B - 1]              a path that the official sampler drew
        R.probs      [B - 1, top_k]       proposal probabilities along that path, per candidate

`tests/golden/targets/` holds small targets and their hidden states (`golden_targets.py`).
`tests/golden/target.safetensors` holds the embedding and the untied head that all cases share.
`tests/golden/provenance.json` holds versions, seeds, and how far the two official backends agree.
A seed is skipped if float32 rounding could decide any choice of a token.
"""

import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from golden_cases import CASES, HIDDEN, MASK, VOCABULARY, Case
from golden_targets import write_targets
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MINIMUM_GAP = 1e-3
"""A chosen logit or score exceeds the next by at least this, or the seed is skipped: a hundred
times the rounding of these float32 sums."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What one backend computed: tensors by name, and the narrowest margin of any choice."""

    tensors: Tensors
    gap: float


def main() -> None:
    """Write every case, then the provenance."""
    torch.set_num_threads(1)
    disable_progress_bar()
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    save_file(_target(), GOLDEN / "target.safetensors")
    write_targets(GOLDEN / "targets")
    cases = {case.name: _write_case(case) for case in CASES}
    provenance = {
        "made_by": "scripts/make_golden.py",
        "python": platform.python_version(),
        "packages": {
            name: version(name)
            for name in ("torch", "transformers", "dflash", "safetensors", "mlx", "mlx-lm")
        },
        "device": "cpu, float32",
        "golden": "torch unless a case says mlx",
        "where_the_official_backends_disagree": DISAGREEMENTS,
        "cases": cases,
    }
    (GOLDEN / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


DISAGREEMENTS = {
    "attention_bias": "torch reads it, MLX has no biases and cannot load such weights: torch",
    "yarn truncate false": "torch reads it, MLX (mlx_lm.models.rope_utils) always rounds the "
    "correction range: torch",
    "one context row appended to a full window": "torch keeps rows in order; MLX's rotating cache "
    "returns them in ring order, so its mask hides the wrong row: torch",
    "embedding scale of the target": "MLX multiplies the block's embeddings by the target's own "
    "scale, torch takes raw rows: MLX (the authors' change to vLLM for Gemma 4, "
    "vllm-project/vllm#41703, scales them as well)",
    "window narrower than a block": "torch applies the window inside the block, MLX does not; no "
    "published draft has one and no case here does",
    "sliding layer_types without use_sliding_window true": "torch drops the window and its cache "
    "then fails, MLX reads sliding_window alone; no case here has it",
    "missing target_layer_ids": "torch guesses them, MLX raises KeyError; no case lacks them",
}


def _write_case(case: Case) -> dict[str, object]:
    folder = GOLDEN / case.name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        save_file(_weights(case, folder, random), folder / "model.safetensors")
        inputs = _inputs(case, random)
        outcomes = {
            "torch": _torch_outcome(case, folder, inputs),
            "mlx": _mlx_outcome(case, folder, inputs),
        }
        chosen = outcomes[case.golden]
        if isinstance(chosen, Outcome) and chosen.gap >= MINIMUM_GAP:
            break
    else:
        raise SystemExit(f"{case.name}: no seed below 200 decides every token by {MINIMUM_GAP}")
    agreement = _agreement(outcomes["mlx"], outcomes["torch"], len(case.rounds))
    last = len(case.rounds) - 1
    expected = {
        name: tensor.contiguous()
        for name, tensor in chosen.tensors.items()
        if not name.endswith("logits") or name in ("0.logits", f"{last}.logits")
    }
    facts = {
        "rounds": len(case.rounds),
        "golden": case.golden,
        "tied": case.tied,
        "target_scale": case.target_scale,
        "temperature": case.temperature,
    }
    # one key only: safetensors writes several in an order that changes from run to run
    save_file({**inputs, **expected}, folder / "golden.safetensors", {"facts": json.dumps(facts)})
    print(f"{case.name}: seed {seed}, gap {chosen.gap:.1e}, {agreement}", file=sys.stderr)
    return {
        "guards": case.guards,
        "golden": case.golden,
        "seed": seed,
        "narrowest_margin": round(chosen.gap, 5),
        "mlx_against_torch": agreement,
    }


def _target() -> Tensors:
    random = torch.Generator().manual_seed(20)
    return {
        "embed_tokens.weight": (0.3 * torch.randn(VOCABULARY, HIDDEN, generator=random)).half(),
        "lm_head.weight": (torch.randn(VOCABULARY, HIDDEN, generator=random) / HIDDEN**0.5).half(),
    }


def _model_class(case: Case):
    from dflash.model import DFlash2DraftModel, DFlashDraftModel

    second = "DFlash2DraftModel" in case.config["architectures"]
    return DFlash2DraftModel if second else DFlashDraftModel


def _weights(case: Case, folder: Path, random: torch.Generator) -> Tensors:
    """Return random weights under published names, scaled so that activations stay near one."""
    model_class = _model_class(case)
    names = model_class(model_class.config_class.from_pretrained(folder)).state_dict()
    weights = {}
    for name, like in names.items():
        noise = torch.randn(like.shape, generator=random)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            value = 1.5 + 0.3 * noise  # attention sharp enough for a wrong mask to show
        elif name.endswith("norm.weight"):
            value = 1 + 0.25 * noise
        elif name.endswith("base_kernel"):
            value = 0.3 * noise
            value[:, 0] += 1
        elif name.endswith("bias"):
            value = 0.3 * noise
        else:
            value = noise / like.shape[-1] ** 0.5
        weights[name.replace("codebook.weight", "codebook")] = value.half()
    return weights


def _inputs(case: Case, random: torch.Generator) -> Tensors:
    width = HIDDEN * len(case.config["dflash_config"]["target_layer_ids"])
    inputs = {}
    for number, (rows, block) in enumerate(case.rounds):
        features = 3 * torch.randn(rows, width, generator=random)
        tokens = torch.full((block,), MASK, dtype=torch.int32)
        tokens[0] = torch.randint(0, MASK, (1,), generator=random)
        inputs[f"{number}.features"] = features.half()
        inputs[f"{number}.block"] = tokens
    return inputs


class TorchTarget(torch.nn.Module):
    """The parts of a target that the official draft uses: an embedding and a head."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        weights = load_file(GOLDEN / "target.safetensors")
        self.embedding = torch.nn.Embedding.from_pretrained(weights["embed_tokens.weight"].float())
        head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        name = "embed_tokens.weight" if tied else "lm_head.weight"
        head.weight = torch.nn.Parameter(weights[name].float())
        self.lm_head = head

    def get_input_embeddings(self) -> torch.nn.Embedding:
        """Return the embedding; transformers calls this method."""
        return self.embedding


@torch.inference_mode()
def _torch_outcome(case: Case, folder: Path, inputs: Tensors) -> Outcome:
    """Run the official PyTorch draft through the rounds as its own loop does."""
    from dflash import model as official

    draft = _model_class(case).from_pretrained(folder, dtype=torch.float32).eval()
    target = TorchTarget(case.tied).eval()
    cache = official._make_cache(draft.config)
    scale = float(official._draft_value(draft.config, "input_embedding_scale", 1.0))
    start, gap, tensors = 0, float("inf"), {}
    for number in range(len(case.rounds)):
        features = inputs[f"{number}.features"].float()[None]
        block = inputs[f"{number}.block"].long()[None]
        start += features.shape[1]
        positions = torch.arange(start - features.shape[1], start + block.shape[1])[None]
        hidden = draft(
            target_hidden=features,
            noise_embedding=official._raw_input_embeddings(target, block, scale),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )[:, 1 - block.shape[1] :]
        official._crop_to(cache, start)
        head = official._output_head(target)
        logits = draft.compute_logits(hidden, head)
        result = {"hidden": hidden, "logits": logits, "tokens": logits.argmax(-1)}
        gap = min(gap, _gap(logits, 1))
        if hasattr(draft, "candidate_selector"):
            chosen, narrowest = _selected(draft, hidden, block[:, 0], logits, head, case)
            result |= chosen
            gap = min(gap, narrowest)
        tensors |= {f"{number}.{name}": _stored(value[0]) for name, value in result.items()}
    return Outcome(tensors, gap)


def _selected(draft, hidden, anchor, logits, head, case: Case) -> tuple[Tensors, float]:
    """Return the selector's greedy path, a sampled path with its probabilities, and the margin.

    The path that the official code draws is stored, so that its probabilities can be compared
    without a shared random number generator.
    """
    greedy = draft.propose(hidden, anchor, head, 0.0)[0]
    torch.manual_seed(7)
    path, candidates, probs = draft.propose(hidden, anchor, head, case.temperature)
    candidates, order = candidates.sort(-1)
    # the score gap of the greedy path, read off its probabilities at a temperature of one
    along = _probs_along(draft, hidden, anchor, logits, greedy)
    gap = min(_gap(along.log(), 1), _gap(logits, candidates.shape[-1]))
    return {
        "tokens": greedy,
        "candidates": candidates,
        "path": path,
        "probs": probs.gather(-1, order),
    }, gap


def _probs_along(draft, hidden, anchor, logits, path) -> torch.Tensor:
    """Return the selector's probabilities [1, B - 1, top_k] where each predecessor is given."""
    before = torch.cat([anchor[:, None], path[:, :-1]], 1)
    select = draft.candidate_selector.select
    rows = [
        select(hidden[:, [at]], logits[:, [at]], before[:, at], 1.0)[2]
        for at in range(hidden.shape[1])
    ]
    return torch.cat(rows, 1)


def _gap(scores: torch.Tensor, rank: int) -> float:
    """Return the least distance between the `rank`-th best score of a row and the next."""
    best = scores.topk(rank + 1, dim=-1).values
    return (best[..., rank - 1] - best[..., rank]).min().item()


def _stored(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.is_floating_point() else value.int()


def _agreement(mlx: Outcome | str, torch_: Outcome | str, n_rounds: int) -> str:
    """Return how far the two backends' hidden states are apart, round by round."""
    if isinstance(mlx, str) or isinstance(torch_, str):
        return f"not comparable: {mlx if isinstance(mlx, str) else torch_}"
    names = [f"{number}.hidden" for number in range(n_rounds)]
    far = [(mlx.tensors[name] - torch_.tensors[name]).abs().max().item() for name in names]
    return "largest hidden-state difference by round: " + " ".join(f"{value:.0e}" for value in far)


def _mlx_outcome(case: Case, folder: Path, inputs: Tensors) -> Outcome | str:
    """Run the official MLX draft through the rounds, or return why it cannot be loaded."""
    import mlx.core as mx
    import numpy

    try:
        draft = _mlx_draft(case, folder)
    except ValueError as error:
        return f"the MLX draft cannot be loaded: {' '.join(str(error).split())}"
    cache = draft.make_cache()
    gap, tensors = float("inf"), {}
    for number in range(len(case.rounds)):
        features = mx.array(inputs[f"{number}.features"].float().numpy())[None]
        block = mx.array(inputs[f"{number}.block"].numpy())[None]
        hidden = draft.hidden_states(block, features, cache, logits_start=1)
        logits = draft.compute_logits(hidden)
        tokens = mx.argmax(logits, -1)
        if hasattr(draft, "candidate_selector"):
            tokens = draft.candidate_selector.select(hidden, logits, block[:, 0], 0.0)[0]
        for name, value in (("hidden", hidden), ("logits", logits), ("tokens", tokens)):
            array = torch.from_numpy(numpy.array(value[0]))
            tensors[f"{number}.{name}"] = _stored(array)
        gap = min(gap, _gap(tensors[f"{number}.logits"], 1))
    return Outcome(tensors, gap)


def _mlx_draft(case: Case, folder: Path):
    """Load the draft with the official MLX loader, which reads only from a hub cache."""
    import mlx.core as mx
    import mlx.nn as nn

    with tempfile.TemporaryDirectory() as hub:
        stored = Path(hub) / f"models--golden--{case.name}"
        (stored / "refs").mkdir(parents=True)
        (stored / "refs" / "main").write_text("0" * 40)
        shutil.copytree(folder, stored / "snapshots" / ("0" * 40))
        os.environ.update(HF_HUB_CACHE=hub, HF_HUB_OFFLINE="1")
        from dflash import model_mlx as official
        from huggingface_hub import constants

        constants.HF_HUB_CACHE = hub
        draft = official.load_draft(f"golden/{case.name}")
    draft.set_dtype(mx.float32)
    weights = mx.load(str(GOLDEN / "target.safetensors"))
    embedding = nn.Embedding(VOCABULARY, HIDDEN)
    embedding.weight = weights["embed_tokens.weight"].astype(mx.float32)
    target = SimpleNamespace(
        model=SimpleNamespace(embed_tokens=embedding, embed_scale=case.target_scale)
    )
    if not case.tied:
        head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        head.weight = weights["lm_head.weight"].astype(mx.float32)
        target.lm_head = head
    return draft.bind(target)


if __name__ == "__main__":
    main()
