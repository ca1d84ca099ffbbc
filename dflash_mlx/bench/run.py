"""The order of a benchmark: parity first, then the arms in turn, and what was measured kept.

Arms are interleaved prompt by prompt and change their order from repeat to repeat, so a machine
that warms up or is busy hits them alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from dflash_mlx.bench.arms import AUTO, PLAIN, Answer, Arm, DFlashArm, PlainArm, prompt_ids
from dflash_mlx.bench.parity import Parity, compare
from dflash_mlx.bench.suites import Prompt, long_document
from dflash_mlx.engine.engine import Engine
from dflash_mlx.errors import BadRequest, DFlashError


@dataclass(frozen=True)
class BenchConfig:
    """What to measure. `block_sizes` are fixed blocks besides auto; `contexts` are prompt tokens.

    A prompt of another length than its own is a long document of about so many tokens.
    """

    n_tokens: int = 256
    repeats: int = 3
    block_sizes: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    cool_down_s: float = 0.0

    def __post_init__(self) -> None:
        for option, value in (("--max-tokens", self.n_tokens), ("--repeats", self.repeats)):
            if value < 1:
                raise BadRequest(f"{option} is {value}; it needs a whole number > 0")
        if not 0 <= self.cool_down_s < float("inf"):
            raise BadRequest(f"--cool-down is {self.cool_down_s}; it needs seconds >= 0")
        for option, values in (("--contexts", self.contexts), ("--block-sizes", self.block_sizes)):
            if any(value < 1 for value in values):
                raise BadRequest(f"{option} is {min(values)}; it needs whole numbers > 0")


@dataclass(frozen=True)
class Sample:
    """One answer of one arm to one prompt."""

    arm: str
    prompt: int
    kind: str
    repeat: int
    answer: Answer


@dataclass
class Measured:
    """Everything seen so far; a run that ends early keeps it. `broken_off` says why it did."""

    prompts: list[Prompt]
    parity: dict[tuple[str, int], Parity] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    broken_off: str | None = None


Progress = Callable[[str], None]

STOPPED = "interrupted"
"""Why a run is only a part where the user ended it."""

_WORSE = {"equal": 0, "near-tie": 1, "different": 2}


def run(
    engine: Engine, prompts: Sequence[Prompt], config: BenchConfig, progress: Progress
) -> Measured:
    """Return what was measured; on an interrupt or a late error, what was measured until then.

    Raises:
        BadRequest: there are no prompts, or one that is longer than the context; no draft, or a
            block that the draft does not have.
    """
    work = [*prompts, *(_filled(engine, context) for context in config.contexts)]
    if not work:
        raise BadRequest("there are no prompts to measure with; name a kind or a file")
    if engine.loaded.pair.draft is None:
        raise BadRequest("this pair has no draft, so there is nothing to compare; see --draft")
    for prompt in work:
        n_rows, room = len(prompt_ids(engine, prompt)), engine.loaded.context_length
        if n_rows > room:
            raise BadRequest(
                f"a prompt of kind {prompt.kind} has {n_rows} tokens and the context holds {room}; "
                "leave it out"
            )
    arms = arms_of(engine, config)
    measured = Measured(work)
    try:
        for index, arm in product(range(len(work)), arms):
            progress(f"comparing texts: prompt {index + 1} of {len(work)}, {arm.name}")
            _check(engine, measured, index, arm, config.n_tokens)
        for repeat, index, arm in _turns(config.repeats, len(work), arms):
            progress(f"repeat {repeat + 1} of {config.repeats}, prompt {index + 1}, {arm.name}")
            time.sleep(config.cool_down_s)
            answer = arm.answer(engine, work[index], config.n_tokens)
            kind = work[index].kind
            _compare(engine, measured, index, arm, answer)
            measured.samples.append(Sample(arm.name, index, kind, repeat, answer))
    except KeyboardInterrupt:
        measured.broken_off = STOPPED
    except (DFlashError, RuntimeError) as error:  # MLX's own errors are RuntimeErrors
        if not any(sample.repeat >= 0 for sample in measured.samples):
            raise
        measured.broken_off = f"broken off ({error})"
    return measured


def arms_of(engine: Engine, config: BenchConfig) -> list[Arm]:
    """Return plain decoding, auto, and the fixed blocks asked for.

    Raises:
        BadRequest: the draft has no such block.
    """
    draft = engine.loaded.pair.draft
    assert draft is not None
    for block in config.block_sizes:
        if block > draft.block_size:
            raise BadRequest(f"--block-sizes has {block}; this draft needs 1 to {draft.block_size}")
    return [PlainArm(PLAIN), DFlashArm(), *(DFlashArm(block) for block in config.block_sizes)]


def _check(engine: Engine, measured: Measured, index: int, arm: Arm, n_tokens: int) -> None:
    """Let an arm answer once, untimed: a warm-up, and the text to compare."""
    prompt = measured.prompts[index]
    answer = arm.answer(engine, prompt, n_tokens)
    if arm.name == PLAIN:
        measured.texts[index] = engine.loaded.tokenizer.decode(answer.tokens)
        measured.samples.append(Sample(PLAIN, index, prompt.kind, -1, answer))
    _compare(engine, measured, index, arm, answer)


def _compare(engine: Engine, measured: Measured, index: int, arm: Arm, answer: Answer) -> None:
    """Compare an answer with plain decoding's, and keep the worst that an arm wrote.

    Timed answers too: auto chooses its widths by the clock, so no two of its answers need have
    been verified by the same kernels.
    """
    plain = next(s.answer for s in measured.samples if (s.prompt, s.repeat) == (index, -1))
    ids = prompt_ids(engine, measured.prompts[index])
    found = compare(engine, ids, plain.tokens, answer.tokens)
    before = measured.parity.get((arm.name, index), found)
    measured.parity[arm.name, index] = max(before, found, key=lambda each: _WORSE[each.verdict])


def _turns(repeats: int, n_prompts: int, arms: Sequence[Arm]) -> Iterator[tuple[int, int, Arm]]:
    """Yield repeat, prompt and arm; every arm begins equally often."""
    for repeat, index in product(range(repeats), range(n_prompts)):
        shift = (repeat + index) % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            yield repeat, index, arm


def _filled(engine: Engine, n_tokens: int) -> Prompt:
    """Return a long document of about `n_tokens` tokens, the shortest that reaches them."""
    one, two = (len(prompt_ids(engine, long_document(count))) for count in (1, 2))
    count = max(1, 1 + -(-(n_tokens - one) // max(two - one, 1)))
    return Prompt(f"{n_tokens} tokens", long_document(count).text)


__all__ = ["AUTO", "PLAIN", "BenchConfig", "Measured", "Sample", "arms_of", "run"]
