"""A constructed result and statistics for tests of their output."""

from dflash_mlx.engine.stats import Stats
from dflash_mlx.engine.stream import Result

STATS = Stats(
    rounds=10,
    drafted=70,
    accepted=14,
    acceptance=0.2,
    tokens_per_round=2.4,
    accepted_lengths={0: 4, 1: 2, 3: 4},
    accepted_by_position=(0.6, 0.4, 0.4, 0.0, 0.0, 0.0, 0.0),
    drafted_by_position=(10,) * 7,
    prefill_s=0.5,
    decode_s=2.0,
    prefill_tps=100.0,
    decode_tps=12.0,
    draft_s=0.4,
    verify_s=1.6,
    host_reads=10,
    block_size=8,
    path="dflash",
    disabled_at=None,
    reason=None,
    peak_memory_bytes=610_000_000,
    blas="openblas",
)
RESULT = Result(
    "text", "text", "", (1, 2), "stop", None, 60, 10, 10, 24, "tiny", "draft", None, STATS
)
