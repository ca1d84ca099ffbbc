"""Summarises a benchmark: medians with quartiles, by arm and kind of prompt, and a verdict.

An answer counts only if its text equals plain decoding's, near-ties included. A speedup compares
two answers to the same prompt in the same repeat.
"""

import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import median
from typing import Any

from dflash_mlx import __version__
from dflash_mlx.bench.arms import AUTO, PLAIN, ArmAnswer
from dflash_mlx.bench.forwards import Forward
from dflash_mlx.bench.run import BenchConfig, BenchRun, BenchSample
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.measured_costs import cost_key
from dflash_mlx.engine.stats import Stats, acceptance_by_position

_MIN_SPEEDUP = 1.03
"""Speedup from which the verdict recommends drafting; the controller uses the same threshold."""

_EQUIVALENT = 0.97
"""Ratio from which auto is as good as another arm: the goal of docs/never-slower.md."""


@dataclass(frozen=True)
class Spread:
    """A median, its quartiles, and the number of values."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class ArmFigures:
    """Results of one arm on one kind of prompt (or on "all").

    `throughput` is in tokens/s and `speedup` is its ratio to plain decoding. Times are in seconds
    per round: `draft_s` and `verify_s` are the forwards alone, `overhead_s` is the rest of the
    round. `bound_share` is the speedup divided by its bound, tokens_per_round / (v + d), where v
    and d are the forwards in plain steps. `accepted_lengths` counts rounds by accepted tokens, and
    `throughput_along` is (tokens so far, tokens/s there).
    """

    arm: str
    kind: str
    throughput: Spread
    speedup: Spread | None
    tokens_per_round: float | None
    acceptance: float | None
    by_position: tuple[float, ...]
    accepted_lengths: Mapping[int, int]
    draft_s: float | None = None
    verify_s: float | None = None
    overhead_s: float | None = None
    bound_share: float | None = None
    throughput_along: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class BenchReport:
    """A complete report. `machine` and `pair` identify what was measured.

    `interrupted_reason` is None for a complete run.
    """

    created_at: str
    machine: Mapping[str, Any]
    pair: Mapping[str, Any]
    settings: Mapping[str, Any]
    interrupted_reason: str | None
    parity: tuple[Mapping[str, Any], ...]
    figures: tuple[ArmFigures, ...]
    forwards: tuple[Forward, ...]
    read_bytes_per_s: float | None
    memory_bytes_per_s: float | None
    peak_memory_bytes: int
    thermal: str | None
    texts: Mapping[str, str] = field(default_factory=dict)
    verdict: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether every text equals plain decoding's, near-ties included."""
        return all(row["verdict"] != "different" for row in self.parity)

    def as_values(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def summarise(
    engine: Engine,
    measured: BenchRun,
    config: BenchConfig,
    bare: Sequence[Forward],
    memory_bytes_per_s: float | None,
    thermal: str | None,
) -> BenchReport:
    """Return the report of a run."""
    place = cost_key(engine.loaded)
    step_s = next((forward.verify_s for forward in bare if forward.block_size == 1), None)
    figures = tuple(_figures(measured, {forward.block_size: forward for forward in bare}))
    peak = max((sample.answer.peak_memory_bytes for sample in measured.samples), default=0)
    return BenchReport(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine={
            "chip": place.chip,
            "device": place.device,
            "blas": place.blas,
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "mlx": version("mlx"),
            "mlx_lm": version("mlx-lm"),
            "dflash_mlx": __version__,
        },
        pair={"model": place.model, "draft": place.draft, "weights": place.quantization},
        settings=asdict(config),
        interrupted_reason=measured.interrupted_reason,
        parity=tuple(
            {"arm": arm, "prompt": prompt, "kind": measured.prompts[prompt].kind, **asdict(found)}
            for (arm, prompt), found in measured.parity.items()
            if arm != PLAIN
        ),
        figures=figures,
        forwards=tuple(bare),
        read_bytes_per_s=engine.loaded.pair.target.shape.step_bytes / step_s if step_s else None,
        memory_bytes_per_s=memory_bytes_per_s,
        peak_memory_bytes=peak,
        thermal=thermal,
        texts={
            f"{index + 1} {measured.prompts[index].kind}": text
            for index, text in measured.texts.items()
        },
        verdict=verdict(figures),
    )


def verdict(figures: Sequence[ArmFigures]) -> dict[str, Any]:
    """Return whether to draft on this machine, with which setting, and the reason as a sentence."""
    whole = {
        figure.arm: figure
        for figure in figures
        if figure.kind == "all" and figure.speedup and figure.arm != PLAIN
    }
    if not whole:
        return {"on": None, "setting": None, "why": "no arm could be compared with plain decoding"}
    best = max(whole.values(), key=lambda figure: _ratio(figure))
    auto = whole.get(AUTO)
    if auto and _ratio(auto) >= _ratio(best) * _EQUIVALENT:
        best = auto
    on = _ratio(best) >= _MIN_SPEEDUP
    setting = best.arm if on else "--draft none"
    kinds = [
        f"{figure.kind} {_ratio(figure):.2f}x"
        for figure in figures
        if figure.arm == best.arm and figure.kind != "all" and figure.speedup
    ]
    result = f"{best.arm} has a speedup of {_ratio(best):.2f}x ({', '.join(kinds)})"
    if on:
        why = f"{result}; use it"
    elif auto and _ratio(auto) >= _EQUIVALENT:
        why = f"{result}: auto costs no time here, but is not worth the draft's memory"
    else:
        why = f"{result}; use plain decoding here"
    return {"on": on, "setting": setting, "why": why}


def _ratio(figure: ArmFigures) -> float:
    return figure.speedup.median if figure.speedup else 0.0


def _figures(measured: BenchRun, bare: Mapping[int, Forward]) -> Iterator[ArmFigures]:
    timed = [sample for sample in measured.samples if sample.repeat >= 0]
    good = [s for s in timed if _exact(measured, s)]
    plain = {(s.prompt, s.repeat): s.answer for s in good if s.arm == PLAIN}
    arms = list(dict.fromkeys(sample.arm for sample in good))
    kinds = list(dict.fromkeys(sample.kind for sample in good))
    for arm in arms:
        for kind in [*kinds, "all"]:
            samples = [s for s in good if s.arm == arm and kind in (s.kind, "all")]
            if samples:
                yield _figure(arm, kind, samples, plain, bare)


def _exact(measured: BenchRun, sample: BenchSample) -> bool:
    found = measured.parity.get((sample.arm, sample.prompt))
    return found is not None and found.verdict != "different"


def _figure(
    arm: str,
    kind: str,
    samples: Sequence[BenchSample],
    plain: Mapping[tuple[int, int], ArmAnswer],
    bare: Mapping[int, Forward],
) -> ArmFigures:
    answers = [sample.answer for sample in samples]
    stats = [answer.stats for answer in answers if answer.stats is not None]
    ratios = [
        sample.answer.throughput / plain[sample.prompt, sample.repeat].throughput
        for sample in samples
        if (sample.prompt, sample.repeat) in plain
    ]
    rounds = sum(each.rounds for each in stats)
    drafted = sum(each.drafted for each in stats)
    per_round = sum(len(answer.tokens) for answer in answers) / rounds if rounds else None
    figure = ArmFigures(
        arm=arm,
        kind=kind,
        throughput=spread([answer.throughput for answer in answers]),
        speedup=spread(ratios) if ratios else None,
        tokens_per_round=per_round,
        acceptance=sum(each.accepted for each in stats) / drafted if drafted else None,
        by_position=_by_position(stats),
        accepted_lengths=dict(
            sorted(sum((Counter(each.accepted_lengths) for each in stats), Counter()).items())
        ),
        throughput_along=_along(answers),
    )
    return _with_parts(figure, stats, bare)


def _with_parts(
    figure: ArmFigures, stats: Sequence[Stats], bare: Mapping[int, Forward]
) -> ArmFigures:
    """Split the rounds of a fixed block size into the two forwards and the rest."""
    block_size = int(figure.arm.split()[1]) if figure.arm.startswith("block ") else 0
    if block_size not in bare or 1 not in bare or not stats or figure.tokens_per_round is None:
        return figure
    forward, step_s = bare[block_size], bare[1].verify_s
    round_s = sum(each.decode_s for each in stats) / sum(each.rounds for each in stats)
    parts_s = forward.verify_s + forward.draft_s
    bound = figure.tokens_per_round / (parts_s / step_s)
    reached = figure.speedup.median if figure.speedup else None
    return replace(
        figure,
        draft_s=forward.draft_s,
        verify_s=forward.verify_s,
        overhead_s=round_s - parts_s,
        bound_share=reached / bound if reached else None,
    )


def _by_position(stats: Sequence[Stats]) -> tuple[float, ...]:
    """Return the share of rounds that accepted draft token i, among those that drafted it."""
    tried: Counter[int] = Counter()
    hits: Counter[int] = Counter()
    for each in stats:
        for position, count in enumerate(each.drafted_by_position):
            tried[position] += count
            hits[position] += round(each.accepted_by_position[position] * count)
    return acceptance_by_position(hits, tried)


def _along(answers: Sequence[ArmAnswer], n_points: int = 24) -> tuple[tuple[int, float], ...]:
    """Return the median throughput along the answer: (tokens so far, tokens per second there)."""
    longest = max(len(answer.tokens) for answer in answers)
    step = max(longest // n_points, 8)
    points = []
    for end in range(step, longest + 1, step):
        speeds = [
            step / (_when(answer, end) - _when(answer, end - step))
            for answer in answers
            if len(answer.tokens) >= end and _when(answer, end) > _when(answer, end - step)
        ]
        if speeds:
            points.append((end, median(speeds)))
    return tuple(points)


def _when(answer: ArmAnswer, n_tokens: int) -> float:
    """Return the seconds at which an answer had `n_tokens`, interpolated between marks."""
    before = (0, 0.0)
    for mark in answer.marks:
        if mark[0] >= n_tokens:
            share = (n_tokens - before[0]) / (mark[0] - before[0])
            return before[1] + share * (mark[1] - before[1])
        before = mark
    return before[1]


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one value."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(
        median=median(ordered),
        low=ordered[round(last * 0.25)],
        high=ordered[round(last * 0.75)],
        count=len(ordered),
    )
