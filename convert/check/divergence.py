"""Compares the next-token distributions of a converted target and its source on the sample text.

Both run layer by layer, and logits are computed in chunks of the vocabulary, to bound the memory.
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
from dflash_mlx.convert.sources.sample_text import TEXT, sample_tokens
from dflash_mlx.convert.tensors import Rows, chunks, numbers, to_mlx
from dflash_mlx.errors import UnsupportedModel
from dflash_mlx.system.foreign import reading


@dataclass(frozen=True)
class TargetComparison:
    """Kullback-Leibler divergence of the result from the source over `n_tokens` positions, in nats.

    `top1_agreement` is the share of positions at which both have the same most likely token.
    """

    mean_kl: float
    largest_kl: float
    top1_agreement: float
    n_tokens: int


def compare_targets(
    job: ConversionJob, written: Mapping[str, Rows], folder: Path, watch: ProgressCallback
) -> tuple[TargetComparison | None, str | None]:
    """Return the comparison of a written target in `folder` and None, or None and the reason."""
    if job.plan.unchanged():
        return None, "every weight is a copy of the source's"
    tokens = sample_tokens(folder, TEXT)
    if tokens is None:
        return None, "the source has no usable tokenizer"
    try:
        runner = LayerRunner(job.source.config, job.source.name)
    except UnsupportedModel as error:
        return None, str(error)
    with reading(
        job.source.name,
        "the model that config.json describes",
        "check config.json, or skip the comparison with --no-verify",
    ):
        return _compare(job, runner, tokens, written, watch), None


def _compare(
    job: ConversionJob,
    runner: LayerRunner,
    tokens: list[int],
    written: Mapping[str, Rows],
    watch: ProgressCallback,
) -> TargetComparison:
    """Run source and result layer by layer, and compare their logits."""
    after = _result_values(job, written)
    hidden = [runner.embed(job.values, tokens), runner.embed(after, tokens)]
    for index in range(runner.n_layers):
        for side, values in enumerate((job.values, after)):
            runner.fill(index, values)
            hidden[side] = runner.run(index, hidden[side])
            runner.empty(index)
        mx.clear_cache()
        watch(ConversionProgress("check", index + 1, runner.n_layers, "layers against the source"))
    normed = [runner.norm(job.values, hidden[0]), runner.norm(after, hidden[1])]
    return divergence(runner.head(job.values), runner.head(after), normed[0], normed[1])


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
    """Running maximum, sum and best token of logits [n, V] in chunks of the vocabulary."""

    def __init__(self, n_tokens: int) -> None:
        self.highest = mx.full((n_tokens,), -mx.inf)
        self.total = mx.zeros((n_tokens,))
        self.best = mx.zeros((n_tokens,), dtype=mx.int32)

    def add(self, logits: mx.array, first: int) -> mx.array:
        """Add logits [n, v] of the tokens from `first` on; return the factor for earlier sums."""
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
    """Return the comparison of two heads [V, D] applied to two normed hidden states [n, D]."""
    source, result = _Softmax(len(source_hidden)), _Softmax(len(result_hidden))
    # sum of exp(s - max s) (s - r) for logits s of the source and r of the result
    weighted = mx.zeros((len(source_hidden),))
    for start, stop in chunks(source_head):
        logits = source_hidden @ _floats(source_head, start, stop).T
        others = result_hidden @ _floats(result_head, start, stop).T
        scale = source.add(logits, start)
        result.add(others, start)
        weights = mx.exp(logits - source.highest[:, None])
        weighted = weighted * scale + (weights * (logits - others)).sum(axis=-1)
        mx.eval(weighted, *vars(source).values(), *vars(result).values())
    kl = mx.maximum(weighted / source.total - source.log_total + result.log_total, 0)
    same = (source.best == result.best).astype(mx.float32)
    mean, largest, agreement = numbers([kl.mean(), kl.max(), same.mean()])
    return TargetComparison(mean, largest, agreement, len(source_hidden))


def _floats(rows: Rows, start: int, stop: int) -> mx.array:
    return to_mlx(rows.read(start, stop), rows.dtype).astype(mx.float32)
