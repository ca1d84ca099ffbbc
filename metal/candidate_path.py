"""DFlash 2's path selection over the candidates of a block, left to right, in one launch.

Shapes: S rows, K candidates per row, R rank, V vocabulary. Kernel: candidate_path.metal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from dflash_mlx.metal.build import DEFAULT_DEVICE, Device, Launch, read_kernel
from dflash_mlx.metal.refusal import (
    first_reason,
    float_refusal,
    rank_refusal,
    refuse,
    shape_refusal,
)

MAX_CANDIDATES: Final = 32
SIMDGROUPS: Final = 8

KERNEL: Final = read_kernel(
    "candidate_path",
    ("anchor", "candidates", "unary", "projected", "before", "after", "noise", "inverse"),
    ("chosen", "log_probs"),
)


@dataclass(frozen=True)
class Codebooks:
    """Predecessor and successor codebooks, [V, R] each."""

    before: mx.array
    after: mx.array


@dataclass(frozen=True)
class CandidateRows:
    """Candidates int32 [S, K], their logits float32 [S, K], and projected hidden states [S, R]."""

    candidates: mx.array
    unary: mx.array
    projected: mx.array


@dataclass(frozen=True)
class CandidatePath:
    """The selected tokens int32 [S] and the log probabilities float32 [S, K] of all candidates."""

    tokens: mx.array
    log_probs: mx.array


def candidate_path_reference(
    anchor: mx.array, rows: CandidateRows, books: Codebooks, temperature: float, noise: mx.array
) -> CandidatePath:
    """Return the path from `anchor` and its log probabilities, computed in float32.

    The score of candidate b after token a is unary + <before[a] * projected, after[b]>. Each row
    selects the candidate with the best score / temperature + noise. Temperature 0 selects the best
    score and returns the log probabilities of temperature 1.
    """
    inverse = 1 / temperature if temperature else 1.0
    previous = anchor.reshape(1)
    tokens, log_probs = [], []
    for row in range(rows.candidates.shape[0]):
        candidates = rows.candidates[row]
        query = books.before[previous].astype(mx.float32) * rows.projected[row].astype(mx.float32)
        fit = books.after[candidates].astype(mx.float32) @ query[0]
        scores = (rows.unary[row] + fit) * inverse
        log_probs.append(scores - mx.logsumexp(scores))
        previous = candidates[mx.argmax(scores + noise[row])].reshape(1)
        tokens.append(previous)
    return CandidatePath(mx.concatenate(tokens), mx.stack(log_probs))


def candidate_path_refusal(
    anchor: mx.array, rows: CandidateRows, books: Codebooks, temperature: float, noise: mx.array
) -> str | None:
    """Return why the kernel does not support these inputs, or None."""
    return first_reason(_reasons(anchor, rows, books, temperature, noise))


def candidate_path(
    anchor: mx.array,
    rows: CandidateRows,
    books: Codebooks,
    temperature: float,
    noise: mx.array,
    *,
    device: Device | None = DEFAULT_DEVICE,
) -> CandidatePath:
    """Return the path from `anchor`, an int32 scalar array, and its log probabilities.

    `noise` float32 [S, K] is added to score / temperature: zeros select the best candidate,
    Gumbel noise samples one. With temperature 0, `noise` must be zeros. All token ids must be
    below V. Raises BadRequest for inputs that the kernel does not support.
    """
    reason = candidate_path_refusal(anchor, rows, books, temperature, noise)
    refuse("candidate_path", reason)
    if device is None:
        return candidate_path_reference(anchor, rows, books, temperature, noise)
    n_rows, count = rows.candidates.shape
    threads = 32 * min(SIMDGROUPS, count)
    launch = Launch(
        kernel=KERNEL,
        inputs=(
            anchor.reshape(1),
            rows.candidates,
            rows.unary,
            rows.projected,
            books.before,
            books.after,
            noise,
            mx.array([1 / temperature if temperature else 1.0], mx.float32),
        ),
        template=(
            ("T", rows.projected.dtype),
            ("W", books.before.dtype),
            ("KC", count),
            ("SIMDS", threads // 32),
        ),
        grid=(threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=((n_rows,), (n_rows, count)),
        output_dtypes=(mx.int32, mx.float32),
    )
    tokens, log_probs = device.run(launch)
    return CandidatePath(tokens, log_probs)


def _reasons(
    anchor: mx.array, rows: CandidateRows, books: Codebooks, temperature: float, noise: mx.array
) -> Iterator[str | None]:
    if anchor.size != 1 or anchor.dtype != mx.int32:
        yield f"anchor is {anchor.dtype} {list(anchor.shape)}; one int32 is needed"
    yield rank_refusal("candidates", rows.candidates, "S K")
    yield rank_refusal("projected", rows.projected, "S R")
    yield rank_refusal("before", books.before, "V R")
    n_rows, count = rows.candidates.shape
    if n_rows < 1 or not 1 <= count <= MAX_CANDIDATES:
        yield f"{count} candidates in {n_rows} rows; 1 to {MAX_CANDIDATES} in 1 or more are needed"
    if rows.candidates.dtype != mx.int32:
        yield f"candidates are {rows.candidates.dtype}; int32 is needed"
    for name, array in (("unary", rows.unary), ("noise", noise)):
        yield shape_refusal(name, array, (n_rows, count))
        if array.dtype != mx.float32:
            yield f"{name} is {array.dtype}; float32 is needed"
    for name, array in (
        ("projected", rows.projected),
        ("before", books.before),
        ("after", books.after),
    ):
        yield float_refusal(name, array)
    yield shape_refusal("projected", rows.projected, (n_rows, books.before.shape[1]))
    yield shape_refusal("after", books.after, books.before.shape)
    if books.after.dtype != books.before.dtype:
        yield f"codebooks are {books.before.dtype} and {books.after.dtype}; one type is needed"
    if temperature < 0:
        yield f"temperature is {temperature}; 0 or more is needed"
