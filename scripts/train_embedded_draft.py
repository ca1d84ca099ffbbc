"""Train a DFlash draft of the embedded pair with PyTorch, on shards of token ids.

A shard is a gzipped JSON list of `[kind, prompt ids, answer ids]`.

`dflash-mlx train` does the same with MLX; on CPUs with bfloat16 matrix units PyTorch is several
times faster. Needs torch, safetensors, tokenizers and mlx (for 8 bits); the tests do not need it.

    python scripts/train_embedded_draft.py SHARD.json.gz... --target FLOAT32_FOLDER --out OUT \
        --steps 400

The loss is that of `dflash_mlx.train.loop.loss` (tests/train/test_torch_draft.py compares them).
Samples that share ten tokens in a row with a held-out or benchmark prompt are dropped. The
evaluation decodes the held-out prompts: it generates the target's greedy answers once, drafts at
all their positions, and counts the rounds that sequential decoding would take.
"""

import argparse
import gzip
import json
import random
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.torch_draft import Draft, Target, block_batch, block_loss, load_draft

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "dflash_mlx" / "drafts" / "smollm2-135m-dflash-b8"
HELD_OUT = ROOT / "dflash_mlx" / "train" / "loop" / "held_out.toml"
BENCHMARK = ROOT / "dflash_mlx" / "bench" / "prompts.toml"
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)
END, TOP_K, OVERLAP, GROUP = 2, 32, 10, 64
"""The end token; stored teacher tokens; tokens in a row that count as overlap with a held-out
prompt (fewer occur in every prompt by chance); group size of the quantization."""


@dataclass(frozen=True)
class Features:
    """A sample's tokens [n], the target's hidden states [n, F], and its top-k distribution."""

    tokens: torch.Tensor
    first: int
    hidden: torch.Tensor
    teacher: tuple[torch.Tensor, torch.Tensor]


class Trainer:
    """A draft, its target, and the frozen head that both share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.dtype = torch.float32 if options.float32 else torch.bfloat16
        self.target = Target(options.target, self.dtype)
        self.draft, self.frozen = load_draft(options.init)
        self.ids = self.frozen["d2t"].long() + torch.arange(len(self.frozen["d2t"]))
        self.index_of = torch.full((len(self.target.embedding),), -1)
        self.index_of[self.ids] = torch.arange(len(self.ids))
        self.head = self.frozen["lm_head.weight"].to(self.dtype)

    @torch.inference_mode()
    def features(self, prompt: list[int], answer: list[int]) -> Features:
        """Return the target's output for a sample."""
        tokens, first = torch.tensor([*prompt, *answer]), len(prompt) - 1
        hidden, final = self.target.forward(tokens, self.draft.layer_ids)
        shares, ids = self.target.logits(final[first:]).float().softmax(-1).topk(TOP_K, -1)
        return Features(tokens, first, hidden, (ids, shares))

    def loss(self, sample: Features, anchors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss at `anchors`, and which positions are right."""
        batch = block_batch(
            sample.tokens,
            sample.first,
            anchors,
            self.draft.block_size,
            sample.teacher,
            self.index_of,
        )
        logits = self.logits(sample, anchors)
        return block_loss(logits, batch, self.options.decay, self.options.distillation)

    def logits(self, sample: Features, anchors: torch.Tensor) -> torch.Tensor:
        """Return the draft's logits [N, B - 1, V]."""
        ids = torch.full((len(anchors), self.draft.block_size), self.draft.mask_token)
        ids[:, 0] = sample.tokens[anchors]
        embedded = self.target.embedding[ids].to(self.dtype).clone()
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.options.float32):
            hidden = self.draft(embedded, sample.hidden.to(self.dtype).clone(), anchors)
            return hidden.to(self.dtype) @ self.head.T

    @torch.no_grad()
    def decode(self, sample: Features) -> tuple[int, int]:
        """Return the tokens and rounds of greedy decoding, for an answer that is greedy."""
        size = self.draft.block_size
        anchors = torch.arange(sample.first, len(sample.tokens) - 1)
        proposed = self.ids[self.logits(sample, anchors).argmax(-1)]
        position, rounds = sample.first, 0
        while position < len(sample.tokens) - 1:
            truth = sample.tokens[position + 1 : position + size]
            right = proposed[position - sample.first][: len(truth)] == truth
            position += int(right.long().cumprod(0).sum()) + 1
            rounds += 1
        return len(sample.tokens) - 1 - sample.first, rounds


def read_samples(files: list[Path], excluded: set[tuple[int, ...]]) -> list[tuple]:
    """Return the samples `(kind, prompt, answer)` of shards without overlap or repetition."""
    samples, seen = [], set()
    for file in files:
        with gzip.open(file, "rt") as stream:
            rows = json.load(stream)
        for row in rows:
            kind, prompt, answer = row if len(row) == 3 else ("self", *row)
            tokens = (*prompt, *answer)
            overlaps = any(tokens[i : i + OVERLAP] in excluded for i in range(len(tokens)))
            if len(answer) >= 2 and not overlaps and tokens not in seen:
                seen.add(tokens)
                samples.append((kind, prompt, answer))
    return samples


def held_out(tokenizer, file: Path, table: str = "kinds") -> list[tuple[str, list[int], list[int]]]:
    """Return `(kind, rendered prompt, ids of the text)` of a file of prompts by kind."""
    kinds = tomllib.loads(file.read_text())[table]
    return [
        (
            kind,
            tokenizer.encode(
                f"{SYSTEM}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            ).ids,
            tokenizer.encode(text).ids,
        )
        for kind, texts in kinds.items()
        for text in texts
    ]


def n_grams(prompts: list[tuple]) -> set[tuple[int, ...]]:
    """Return all runs of `OVERLAP` tokens in the texts of prompts."""
    return {
        tuple(text[i : i + OVERLAP])
        for _, _, text in prompts
        for i in range(len(text))
        if len(text[i : i + OVERLAP]) == OVERLAP
    }


def greedy_answers(folder: Path, prompts: list[tuple], n_tokens: int, cache: Path) -> list[tuple]:
    """Return `(kind, prompt, answer)` with greedy answers in float32, stored in `cache`."""
    if cache.is_file():
        return json.loads(cache.read_text())
    target, samples = Target(folder, torch.float32), []
    for kind, prompt, _ in prompts:
        answer: list[int] = []
        past: list = []
        _, final = target.forward(torch.tensor(prompt), [0], past)
        while len(answer) < n_tokens and (not answer or answer[-1] != END):
            answer.append(int(target.logits(final[-1:]).argmax()))
            _, final = target.forward(torch.tensor(answer[-1:]), [0], past)
        samples.append((kind, prompt, answer))
    cache.write_text(json.dumps(samples))
    return samples


def evaluate(trainer: Trainer, samples: list[Features], kinds: list[str]) -> dict[str, float]:
    """Return the tokens per round by kind and over all prompts."""
    tokens, rounds = Counter(), Counter()
    for kind, sample in zip(kinds, samples, strict=True):
        counts = trainer.decode(sample)
        for name in (kind, "all"):
            tokens[name] += counts[0]
            rounds[name] += counts[1]
    return {name: round(tokens[name] / rounds[name], 4) for name in tokens}


def train(trainer: Trainer, samples: list[tuple], report) -> None:
    """Take the steps; `report` is called with the step and the mean loss since the last call."""
    options, draft, rng = trainer.options, trainer.draft, random.Random(trainer.options.seed)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=options.rate, weight_decay=0.01)
    rise = max(1, round(options.steps * 0.04))

    def rate(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return (
            0.05
            + 0.95
            * 0.5
            * (
                1 + torch.cos(torch.tensor((step - rise) / max(1, options.steps - rise) * torch.pi))
            ).item()
        )

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    order, cache, losses = [], {}, []
    for step in range(1, options.steps + 1):
        for _ in range(options.samples_per_step):
            if not order:
                order = rng.sample(range(len(samples)), len(samples))
            index = order.pop()
            if index not in cache:
                cache[index] = trainer.features(*samples[index][1:])
            sample = cache[index]
            places = range(sample.first, len(sample.tokens) - 1)
            chosen = sorted(rng.sample(places, min(options.anchors, len(places))))
            loss, _ = trainer.loss(sample, torch.tensor(chosen))
            (loss / options.samples_per_step).backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % options.report_every == 0 or step == options.steps:
            report(step, sum(losses) / len(losses))
            losses.clear()


def save(draft: Draft, frozen: dict[str, torch.Tensor], out: Path, bits: int) -> None:
    """Write the draft as a checkpoint: bfloat16, or quantized to `bits` as the shipped one."""
    import mlx.core as mx

    out.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name, array in {**draft.state_dict(), **frozen}.items():
        value = mx.array(array.numpy())
        if name == "d2t":
            arrays[name] = value.astype(mx.int32)
        elif bits == 16 or value.ndim < 2:
            arrays[name] = value.astype(mx.bfloat16)
        else:
            base = name.removesuffix(".weight")
            parts = mx.quantize(value.astype(mx.bfloat16), group_size=GROUP, bits=bits)
            names = (name, f"{base}.scales", f"{base}.biases")
            arrays.update(zip(names, parts, strict=True))
    mx.save_safetensors(str(out / "model.safetensors"), arrays, {"format": "mlx"})
    config = {key: value for key, value in draft.config.items() if "quantization" not in key}
    if bits != 16:
        quantization = {"bits": bits, "group_size": GROUP, "mode": "affine"}
        config |= {"quantization": quantization, "quantization_config": quantization}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", type=Path, nargs="*")
    parser.add_argument("--target", type=Path, required=True, help="target in float32")
    parser.add_argument("--init", type=Path, default=SHIPPED, help="draft to initialise from")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument("--bits", type=int, default=8, choices=(4, 8, 16))
    parser.add_argument("--samples", type=int, help="number of samples  [default: all]")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--samples-per-step", type=int, default=4)
    parser.add_argument("--anchors", type=int, default=64, help="blocks per sample")
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=4.0, help="position decay of the loss")
    parser.add_argument("--distillation", type=float, default=0.5)
    parser.add_argument("--float32", action="store_true", help="compute in float32")
    parser.add_argument(
        "--evaluate-on", type=Path, help="shard of greedy answers  [default: held-out prompts]"
    )
    parser.add_argument("--evaluate-count", type=int, default=64, help="answers of that shard")
    parser.add_argument("--answer-tokens", type=int, default=112, help="per held-out prompt")
    parser.add_argument("--report-every", type=int, default=50, help="steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train, print one JSON line per evaluation, and write the draft."""
    from tokenizers import Tokenizer

    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    prompts = held_out(tokenizer, HELD_OUT)
    excluded = n_grams([*prompts, *held_out(tokenizer, BENCHMARK)])
    if options.evaluate_on:
        answers = read_samples([options.evaluate_on], excluded)[: options.evaluate_count]
    else:
        answers_file = options.target / f"held_out_{options.answer_tokens}.json"
        answers = greedy_answers(options.target, prompts, options.answer_tokens, answers_file)
    unseen_prompts = {tuple(prompt) for _, prompt, _ in answers}
    samples = read_samples(options.shards, excluded)
    samples = [sample for sample in samples if tuple(sample[1]) not in unseen_prompts]
    random.Random(0).shuffle(samples)
    samples = samples[: options.samples]
    trainer = Trainer(options)
    kinds, unseen = [kind for kind, *_ in answers], []
    unseen = [trainer.features(prompt, answer) for _, prompt, answer in answers]
    started = time.process_time()

    def report(step: int, loss: float) -> None:
        line = {"step": step, "loss": round(loss, 4), **evaluate(trainer, unseen, kinds)}
        print(json.dumps({**line, "cpu_s": round(time.process_time() - started)}), flush=True)

    n_tokens = sum(len(answer) for *_, answer in samples)
    print(json.dumps({"samples": len(samples), "answer_tokens": n_tokens}), flush=True)
    report(0, float("nan"))
    if samples:
        train(trainer, samples, report)
    if options.out:
        save(trainer.draft, trainer.frozen, options.out, options.bits)


if __name__ == "__main__":
    main()
