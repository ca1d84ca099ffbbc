"""How far a converted target's next-token distribution is from its source's, on one text.

Both are walked layer by layer side by side, and the vocabulary is passed in chunks of rows, so
neither all layers nor all logits are ever in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from dflash_mlx.convert.plan.job import ConversionJob
from dflash_mlx.convert.plan.layer_runner import LayerRunner
from dflash_mlx.convert.plan.packed_source import DequantizedRows
from dflash_mlx.convert.plan.weights import packed_settings
from dflash_mlx.convert.progress import ConversionProgress, ProgressCallback
from dflash_mlx.convert.sources.sample_text import TEXT
from dflash_mlx.convert.sources.tokens import sample_tokens
from dflash_mlx.convert.tensors import Rows, chunks, numbers, to_mlx
from dflash_mlx.errors import UnsupportedModel


@dataclass(frozen=True)
class TargetComparison:
    """Kullback-Leibler divergence in nats of the result from the source, and how often both
    would choose the same token, over `n_tokens` positions.
    """

    mean_kl: float
    largest_kl: float
    top1_agreement: float
    n_tokens: int


def compare_targets(
    job: ConversionJob, written: Mapping[str, Rows], folder: Path, watch: ProgressCallback
) -> tuple[TargetComparison | None, str | None]:
    """Return the divergence of a finished target in `folder`, or why it was not measured."""
    if job.plan.unchanged():
        return None, "every weight is the source's own"
    tokens = sample_tokens(folder, TEXT)
    if tokens is None:
        return None, "the source has no tokenizer"
    try:
        walk = LayerRunner(job.source.config, job.source.name)
    except UnsupportedModel as error:
        return None, str(error)
    after = _result_values(job, written)
    hidden = [walk.embed(job.values, tokens), walk.embed(after, tokens)]
    for index in range(walk.n_layers):
        for side, values in enumerate((job.values, after)):
            walk.fill(index, values)
            hidden[side] = walk.run(index, hidden[side])
            walk.empty(index)
        mx.clear_cache()
        watch(ConversionProgress("check", index + 1, walk.n_layers, "layers against the source"))
    normed = [walk.norm(job.values, hidden[0]), walk.norm(after, hidden[1])]
    return divergence(walk.head(job.values), walk.head(after), normed[0], normed[1]), None


def _result_values(job: ConversionJob, written: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the values of the written files under the names of the source's values."""
    found: dict[str, Rows] = {}
    for name in job.values:
        path = name.removesuffix(".weight")
        scales, biases = written.get(f"{path}.scales"), written.get(f"{path}.biases")
        found[name] = written[name]
        if scales:
            settings = packed_settings(path, job.plan.quantization or {})
            found[name] = DequantizedRows(written[name], scales, biases, settings, "F32")
    return found


class _Softmax:
    """Maximum, sum and best token of logits [n, V] that come in chunks of the vocabulary."""

    def __init__(self, n_tokens: int) -> None:
        self.highest = mx.full((n_tokens,), -mx.inf)
        self.total = mx.zeros((n_tokens,))
        self.best = mx.zeros((n_tokens,), dtype=mx.int32)

    def add(self, logits: mx.array, first: int) -> mx.array:
        """Take logits [n, v] of the tokens from `first`; return the factor for earlier sums."""
        top = logits.max(axis=-1)
        self.best = mx.where(top > self.highest, first + logits.argmax(axis=-1), self.best)
        highest = mx.maximum(self.highest, top)
        scale = mx.exp(self.highest - highest)
        self.total = self.total * scale + mx.exp(logits - highest[:, None]).sum(axis=-1)
        self.highest = highest
        return scale

    @property
    def log_total(self) -> mx.array:
        """Logarithm of the sum of exponentials [n]."""
        return self.highest + mx.log(self.total)


def divergence(
    source_head: Rows, result_head: Rows, source_hidden: mx.array, result_hidden: mx.array
) -> TargetComparison:
    """Return the divergence of two heads [V, D] over two normed hidden states [n, D]."""
    source, result = _Softmax(len(source_hidden)), _Softmax(len(result_hidden))
    moved = mx.zeros((len(source_hidden),))  # sum of exp(s - max s) (s - r), logits s and r
    for start, stop in chunks(source_head):
        logits = source_hidden @ _floats(source_head, start, stop).T
        others = result_hidden @ _floats(result_head, start, stop).T
        scale = source.add(logits, start)
        result.add(others, start)
        weights = mx.exp(logits - source.highest[:, None])
        moved = moved * scale + (weights * (logits - others)).sum(axis=-1)
        mx.eval(moved, *vars(source).values(), *vars(result).values())
    kl = mx.maximum(moved / source.total - source.log_total + result.log_total, 0)
    same = (source.best == result.best).astype(mx.float32)
    mean, largest, agreement = numbers([kl.mean(), kl.max(), same.mean()])
    return TargetComparison(mean, largest, agreement, len(source_hidden))


def _floats(rows: Rows, start: int, stop: int) -> mx.array:
    return to_mlx(rows.read(start, stop), rows.dtype).astype(mx.float32)
