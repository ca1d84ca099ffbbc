"""Statistics of answers as text and bars for a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dflash_mlx.commands.terminal import Terminal

if TYPE_CHECKING:
    from dflash_mlx import Result


def stats_line(result: "Result") -> str:
    """Return one line with token counts, throughput and acceptance of an answer."""
    stats = result.stats
    new = result.prompt_tokens - result.cached_tokens
    parts = [
        f"prompt {new} new + {result.cached_tokens} cached{_rate(stats.prefill_tps)}",
        f"answer {result.generated_tokens}{_rate(stats.decode_tps)}",
    ]
    if stats.acceptance is None:
        parts.append("plain decoding")
    else:
        parts.append(f"{stats.tokens_per_round or 0:.2f} tok/round")
        parts.append(f"{stats.acceptance:.0%} accepted")
    if stats.disabled_at is not None:
        parts.append(f"speculation disabled at token {stats.disabled_at}")
    if result.finish_reason != "stop":
        reasons = {"length": "max tokens reached", "cancelled": "stopped"}
        parts.append(reasons[result.finish_reason])
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    return " | ".join(parts)


def stats_lines(results: Sequence["Result"], terminal: Terminal) -> Iterator[str]:
    """Yield the lines of `/stats`: the last answer, acceptance by position, and totals."""
    if not results:
        yield "no answers yet"
        return
    last = results[-1]
    yield f"last answer: {stats_line(last)}"
    yield from _times(last)
    for name, source in last.stats.sources.items():
        rounds = f"{source.rounds} rounds in {source.seconds:.2f} s"
        yield f"  {name}: {source.accepted} of {source.drafted} draft tokens accepted, {rounds}"
    if last.stats.accepted_by_position:
        yield "share of rounds that accepted the draft token at position"
        for position, share in enumerate(last.stats.accepted_by_position, 1):
            yield f"  {position:2d} {terminal.bar(share)} {share:4.0%}"
    lengths: Counter[int] = Counter()
    for result in results:
        lengths.update(result.stats.accepted_lengths)
    if lengths:
        yield "rounds by number of accepted draft tokens, since the pair was loaded"
        for length in range(max(lengths) + 1):
            share = lengths[length] / lengths.total()
            yield f"  {length:2d} {terminal.bar(share)} {lengths[length]}"
    yield _totals(results)


def _times(result: "Result") -> Iterator[str]:
    stats = result.stats
    parts = [f"prefill {stats.prefill_s:.2f} s", f"decode {stats.decode_s:.2f} s"]
    if stats.draft_s is not None and stats.verify_s is not None:
        parts[-1] += f" (draft {stats.draft_s:.2f} s, verify {stats.verify_s:.2f} s)"
    parts.append(f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB")
    yield "  " + ", ".join(parts)


def _totals(results: Sequence["Result"]) -> str:
    tokens = sum(result.generated_tokens for result in results)
    seconds = sum(result.stats.decode_s for result in results)
    drafted = sum(result.stats.drafted for result in results)
    accepted = sum(result.stats.accepted for result in results)
    count = "1 answer" if len(results) == 1 else f"{len(results)} answers"
    text = f"{count}: {tokens} tokens in {seconds:.1f} s"
    return f"{text}, {accepted} of {drafted} draft tokens accepted" if drafted else text


def _rate(tokens_per_s: float | None) -> str:
    return f", {tokens_per_s:.1f} tok/s" if tokens_per_s else ""
