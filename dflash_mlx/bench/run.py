"""Runs a benchmark: compares texts first, then times the arms in turn.

Arms are interleaved prompt by prompt and change their order, so a machine that warms up or is busy
affects all arms equally. It must not know how results are summarised.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from dflash_mlx.bench.arms import AUTO, PLAIN, Arm, ArmAnswer, DFlashArm, PlainArm, prompt_ids
from dflash_mlx.bench.parity import Parity, compare
from dflash_mlx.bench.suites import BenchPrompt, long_document
from dflash_mlx.engine.engine import Engine
from dflash_mlx.errors import BadRequest, DFlashError


@dataclass(frozen=True)
class BenchConfig:
    """What to measure: fixed block sizes in addition to auto, and prompts of `contexts` tokens.

    A prompt of `contexts` tokens is a long document of at least this length. `cool_down_s` is the
    pause before each answer, in seconds. `copies` adds auto with tokens copied from the context.
    """

    n_tokens: int = 256
    repeats: int = 3
    block_sizes: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    cool_down_s: float = 0.0
    copies: bool = False

    def __post_init__(self) -> None:
        for option, value in (("--max-tokens", self.n_tokens), ("--repeats", self.repeats)):
            if value < 1:
                raise BadRequest(f"{option} is {value}; it must be at least 1")
        if not 0 <= self.cool_down_s < float("inf"):
            raise BadRequest(f"--cool-down is {self.cool_down_s}; it must be at least 0 seconds")
        for option, values in (("--contexts", self.contexts), ("--block-sizes", self.block_sizes)):
            if any(value < 1 for value in values):
                raise BadRequest(f"{option} is {min(values)}; they must be at least 1")


@dataclass(frozen=True)
class BenchSample:
    """One answer of one arm to one prompt."""

    arm: str
    prompt: int
    kind: str
    repeat: int
    answer: ArmAnswer


@dataclass
class BenchRun:
    """All results so far. `interrupted_reason` is None for a complete run.

    `parity` is by (arm, prompt index), `texts` by prompt index.
    """

    prompts: list[BenchPrompt]
    parity: dict[tuple[str, int], Parity] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    samples: list[BenchSample] = field(default_factory=list)
    interrupted_reason: str | None = None


BenchProgress = Callable[[str], None]

INTERRUPT_REASON = "interrupted"
"""The reason of a run that the user interrupted."""

_WORSE = {"equal": 0, "near-tie": 1, "different": 2}


def run(
    engine: Engine, prompts: Sequence[BenchPrompt], config: BenchConfig, progress: BenchProgress
) -> BenchRun:
    """Return the results; after an interrupt or a late error, the results so far.

    Raises:
        BadRequest: there are no prompts or no draft, a prompt is longer than the context, or a
            block size is larger than the draft's.
    """
    work = [*prompts, *(_filled(engine, context) for context in config.contexts)]
    if not work:
        raise BadRequest("there are no prompts to measure with; name a kind or a file")
    if engine.loaded.pair.draft is None:
        raise BadRequest("this pair has no draft, and a benchmark needs one; name it with --draft")
    for prompt in work:
        n_tokens, room = len(prompt_ids(engine, prompt)), engine.loaded.context_length
        if n_tokens > room:
            raise BadRequest(
                f"a prompt of kind {prompt.kind} has {n_tokens} tokens and the context length is "
                f"{room}; use a shorter one"
            )
    arms = arms_of(engine, config)
    measured = BenchRun(work)
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
            measured.samples.append(BenchSample(arm.name, index, kind, repeat, answer))
    except KeyboardInterrupt:
        measured.interrupted_reason = INTERRUPT_REASON
    except (DFlashError, RuntimeError) as error:  # MLX's own errors are RuntimeErrors
        if not any(sample.repeat >= 0 for sample in measured.samples):
            raise
        measured.interrupted_reason = f"interrupted by an error ({error})"
    return measured


def arms_of(engine: Engine, config: BenchConfig) -> list[Arm]:
    """Return the arms: plain decoding, auto, auto with copies if wanted, and fixed block sizes.

    Raises:
        BadRequest: a block size is larger than the draft's.
    """
    draft = engine.loaded.pair.draft
    assert draft is not None
    for block in config.block_sizes:
        if block > draft.block_size:
            raise BadRequest(f"--block-sizes has {block}; this draft needs 1 to {draft.block_size}")
    fixed = [DFlashArm(block) for block in config.block_sizes]
    copies = [DFlashArm(copies=True)] if config.copies else []
    return [PlainArm(PLAIN), DFlashArm(), *copies, *fixed]


def _check(engine: Engine, measured: BenchRun, index: int, arm: Arm, n_tokens: int) -> None:
    """Decode a prompt once without timing it, as a warm-up and to compare the text."""
    prompt = measured.prompts[index]
    answer = arm.answer(engine, prompt, n_tokens)
    if arm.name == PLAIN:
        measured.texts[index] = engine.loaded.tokenizer.decode(answer.tokens)
        measured.samples.append(BenchSample(PLAIN, index, prompt.kind, -1, answer))
    _compare(engine, measured, index, arm, answer)


def _compare(engine: Engine, measured: BenchRun, index: int, arm: Arm, answer: ArmAnswer) -> None:
    """Compare an answer with plain decoding's, and record the worst result of the arm.

    Timed answers are compared too: auto chooses block sizes by the clock, so two of its answers
    may have been verified by different kernels.
    """
    plain = next(s.answer for s in measured.samples if (s.prompt, s.repeat) == (index, -1))
    ids = prompt_ids(engine, measured.prompts[index])
    found = compare(engine, ids, plain.tokens, answer.tokens)
    before = measured.parity.get((arm.name, index), found)
    measured.parity[arm.name, index] = max(before, found, key=lambda each: _WORSE[each.verdict])


def _turns(repeats: int, n_prompts: int, arms: Sequence[Arm]) -> Iterator[tuple[int, int, Arm]]:
    """Yield repeat, prompt index and arm; each arm comes first equally often."""
    for repeat, index in product(range(repeats), range(n_prompts)):
        shift = (repeat + index) % len(arms)
        for arm in (*arms[shift:], *arms[:shift]):
            yield repeat, index, arm


def _filled(engine: Engine, n_tokens: int) -> BenchPrompt:
    """Return the shortest long document of at least `n_tokens` tokens, or nearly."""
    one, two = (len(prompt_ids(engine, long_document(count))) for count in (1, 2))
    count = max(1, 1 + -(-(n_tokens - one) // max(two - one, 1)))
    return BenchPrompt(f"{n_tokens} tokens", long_document(count).text)


__all__ = ["AUTO", "PLAIN", "BenchConfig", "BenchRun", "BenchSample", "arms_of", "run"]
