"""Write `tests/train/golden/`: the loss and gradients of the official draft on a fixed batch.

Run it where PyTorch and the official package are installed (never needed to run the tests):

    pip install 'dflash[local]==0.1.0'
    python scripts/make_training_golden.py

The draft and the head are those of `tests/golden/`. One file a case, `NAME.safetensors`, float32:

    tokens     [n]              the sequence; the answer begins behind token `first`
    features   [n, taps * hidden]
    teacher    [n, K], shares [n, K]   ids and probabilities the target gives the token behind each
    anchors    [N]
    loss       []               mean over slots, weighted exp(-(k - 1) / 4), half of it distillation
    right      [N, B - 1]       whether each slot's likeliest token is the one that came
    grad.NAME                   by the draft's parameters

Each block goes through the official model alone, over the features before its anchor, as in
decoding: nothing here shares a mask with what is tested.
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
            save_file(_outcome(case), FOLDER / f"{case.name}.safetensors")


def _outcome(case) -> dict[str, torch.Tensor]:
    batch = _batch(case)
    draft = _model_class(case).from_pretrained(GOLDEN / case.name, dtype=torch.float32)
    head = TorchTarget(case.tied)
    block_size = draft.config.block_size
    total, weight, right = torch.zeros(()), torch.zeros(()), []
    for anchor in ANCHORS:
        logits = _logits(draft, head, batch, anchor, block_size)
        loss, weights, hits = _judged(logits, batch, anchor, block_size)
        total, weight = total + (weights * loss).sum(), weight + weights.sum()
        right.append(hits)
    loss = total / weight
    loss.backward()
    grads = {f"grad.{name}": value.grad for name, value in draft.named_parameters()}
    outcome = {"loss": loss.detach(), "right": torch.stack(right).to(torch.int32)}
    return {**batch, **outcome, **grads, "anchors": torch.tensor(ANCHORS, dtype=torch.int32)}


def _batch(case) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    width = HIDDEN * len(case.config["dflash_config"]["target_layer_ids"])
    thought = 2 * torch.randn(N_TOKENS, VOCABULARY, generator=random)
    best = thought.softmax(-1).topk(N_TEACHER, dim=-1)
    return {
        "tokens": torch.randint(0, MASK, (N_TOKENS,), generator=random).int(),
        "features": 3 * torch.randn(N_TOKENS, width, generator=random),
        "teacher": best.indices.int(),
        "shares": best.values,
    }


def _logits(draft, target, batch, anchor: int, block_size: int) -> torch.Tensor:
    """Return logits [B - 1, V] of the block at `anchor`, as the official loop drafts it."""
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


def _judged(logits, batch, anchor: int, block_size: int):
    """Return the loss, weight and correctness of each slot [B - 1]."""
    places = torch.arange(anchor + 1, anchor + block_size)
    known = places < N_TOKENS
    labels = batch["tokens"][places.clamp(max=N_TOKENS - 1)].long()
    behind = (places - 1).clamp(max=N_TOKENS - 1)
    spoken = torch.log_softmax(logits, -1)
    cross_entropy = -spoken.gather(1, labels[:, None])[:, 0]
    teacher = batch["teacher"][behind].long()
    soft = -(batch["shares"][behind] * spoken.gather(1, teacher)).sum(-1)
    weights = known * torch.exp(-torch.arange(block_size - 1) / DECAY)
    loss = (1 - DISTILLATION) * cross_entropy + DISTILLATION * soft
    return loss, weights, (logits.argmax(-1) == labels) & known


if __name__ == "__main__":
    main()
