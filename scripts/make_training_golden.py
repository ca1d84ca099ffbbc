"""Write `tests/train/golden/`: loss and gradients of the official draft on a fixed batch.

The tests read the files and do not need PyTorch. To write them again, run this where PyTorch and
the official package are installed:

    pip install 'dflash[local]==0.1.0'
    python scripts/make_training_golden.py

Draft and head are those of `tests/golden/`. One file per case, `NAME.safetensors`, float32:

    tokens     [n]              the sequence; the answer follows token `first`
    features   [n, F]           the target's hidden states
    teacher    [n, K], shares [n, K]   ids and probabilities of the target's next token
    anchors    [N]
    loss       []               mean over positions, weight exp(-(k - 1) / 4), half distillation
    right      [N, B - 1]       whether the most likely token of each position is right
    grad.NAME                   gradient of a parameter of the draft

Each block is run alone through the official model, with the features before its anchor, as in
decoding. No mask is shared with the code under test.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from golden_cases import CASES, HIDDEN, MASK, VOCABULARY
from make_golden import GOLDEN, TorchTarget, _model_class
from safetensors.torch import save_file

FOLDER = GOLDEN.parent / "train" / "golden"
N_TOKENS, FIRST, N_TEACHER, ANCHORS = 40, 4, 8, (4, 5, 17, 30, 36)
DECAY, DISTILLATION = 4.0, 0.5


def main() -> None:
    """Write every case."""
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if case.name in ("full", "full_tied", "mixed"):
            save_file(_golden(case), FOLDER / f"{case.name}.safetensors")


def _golden(case) -> dict[str, torch.Tensor]:
    batch = _batch(case)
    draft = _model_class(case).from_pretrained(GOLDEN / case.name, dtype=torch.float32)
    head = TorchTarget(case.tied)
    block_size = draft.config.block_size
    total, weight, right = torch.zeros(()), torch.zeros(()), []
    for anchor in ANCHORS:
        logits = _logits(draft, head, batch, anchor, block_size)
        loss, weights, hits = _position_losses(logits, batch, anchor, block_size)
        total, weight = total + (weights * loss).sum(), weight + weights.sum()
        right.append(hits)
    loss = total / weight
    loss.backward()
    grads = {f"grad.{name}": value.grad for name, value in draft.named_parameters()}
    result = {"loss": loss.detach(), "right": torch.stack(right).to(torch.int32)}
    return {**batch, **result, **grads, "anchors": torch.tensor(ANCHORS, dtype=torch.int32)}


def _batch(case) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    feature_size = HIDDEN * len(case.config["dflash_config"]["target_layer_ids"])
    logits_of_target = 2 * torch.randn(N_TOKENS, VOCABULARY, generator=random)
    top = logits_of_target.softmax(-1).topk(N_TEACHER, dim=-1)
    return {
        "tokens": torch.randint(0, MASK, (N_TOKENS,), generator=random).int(),
        "features": 3 * torch.randn(N_TOKENS, feature_size, generator=random),
        "teacher": top.indices.int(),
        "shares": top.values,
    }


def _logits(draft, target, batch, anchor: int, block_size: int) -> torch.Tensor:
    """Return logits [B - 1, V] of the block at `anchor`, as in the official decoding loop."""
    from dflash import model as official

    block = torch.full((1, block_size), MASK)
    block[0, 0] = batch["tokens"][anchor]
    hidden = draft(
        target_hidden=batch["features"][None, :anchor],
        noise_embedding=official._raw_input_embeddings(target, block, 1.0),
        position_ids=torch.arange(anchor + block_size)[None],
        past_key_values=official._make_cache(draft.config),
        use_cache=True,
    )[:, 1 - block_size :]
    return draft.compute_logits(hidden, target.lm_head)[0]


def _position_losses(logits, batch, anchor: int, block_size: int):
    """Return the loss, the weight and the correctness of each position [B - 1]."""
    positions = torch.arange(anchor + 1, anchor + block_size)
    known = positions < N_TOKENS
    labels = batch["tokens"][positions.clamp(max=N_TOKENS - 1)].long()
    before = (positions - 1).clamp(max=N_TOKENS - 1)
    log_probs = torch.log_softmax(logits, -1)
    cross_entropy = -log_probs.gather(1, labels[:, None])[:, 0]
    teacher = batch["teacher"][before].long()
    soft = -(batch["shares"][before] * log_probs.gather(1, teacher)).sum(-1)
    weights = known * torch.exp(-torch.arange(block_size - 1) / DECAY)
    loss = (1 - DISTILLATION) * cross_entropy + DISTILLATION * soft
    return loss, weights, (logits.argmax(-1) == labels) & known


if __name__ == "__main__":
    main()
