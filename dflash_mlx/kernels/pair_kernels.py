"""The Metal kernels of a loaded pair: put in at load, chosen from what this machine found out.

Where a model computes dense there is nothing to launch on, and nothing is put in. A device may
be handed in, so that all of this runs without a Mac too.
"""

import hashlib
from collections.abc import Callable, Sequence

import mlx.nn as nn

from dflash_mlx.config import KernelPolicy
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.attention import exchange_attention
from dflash_mlx.kernels.choices import RACED_KEYS
from dflash_mlx.kernels.draft2 import exchange_convolutions, exchange_selector
from dflash_mlx.kernels.fused_head import FusedHead
from dflash_mlx.kernels.gate import BUDGET_S, Gate, Verdict
from dflash_mlx.kernels.gate_store import GateStore, Machine
from dflash_mlx.kernels.layers import exchange_linears, matrix_of
from dflash_mlx.kernels.tuning_tasks import (
    TuningTask,
    attention_tasks,
    convolution_tasks,
    head_tasks,
    matrix_tasks,
    walk_tasks,
)
from dflash_mlx.metal.build import DEFAULT_DEVICE, Device
from dflash_mlx.metal.head_argmax import Head
from dflash_mlx.metal.matrix_cases import Weight, outputs_of
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.system.settings import settings_folder

Step = Callable[[str], None]
"""Told, in a line, what is going on."""


class PairKernels:
    """What was asked about the kernels of one pair, and what was answered.

    Used on the thread that owns the pair, between requests: an answer changes what the next
    block launches.
    """

    def __init__(
        self, tasks: Sequence[TuningTask], gate: Gate, on_step: Step = lambda text: None
    ) -> None:
        self.policy = gate.policy
        self.verdicts: list[Verdict[object]] = []
        """The answers so far."""
        self._gate = gate
        self._on_step = on_step
        self._open = list(tasks)
        self._left_s = BUDGET_S

    @property
    def n_asked(self) -> int:
        """Questions in all, answered or open."""
        return len(self.verdicts) + len(self._open)

    @property
    def n_used(self) -> int:
        """Answers that chose a kernel."""
        return sum(verdict.geometry is not None for verdict in self.verdicts)

    @property
    def waiting(self) -> bool:
        """Whether a race should be held: something is open, and seconds are left for it."""
        return bool(self._open) and self._left_s > 0

    @property
    def fault(self) -> str | None:
        """Why answers could not be kept for the next time, if they could not."""
        return self._gate.store.fault

    @property
    def digest(self) -> str:
        """The choices as a word, the same for the same choices: what costs depend on."""
        used = sorted(f"{v.kernel} {v.shape} {v.geometry}" for v in self.verdicts if v.geometry)
        return hashlib.sha256("\n".join(used).encode()).hexdigest()[:12] if used else "stock"

    def recall(self) -> None:
        """Take the answers that are stored. Takes no device time."""
        still_open = []
        for task in self._open:
            verdict = self._gate.recall(task.case)
            if verdict is None:
                still_open.append(task)
            else:
                self._take(task, verdict)
        self._open = still_open

    def race_next(self, on_step: Step | None = None) -> bool:
        """Answer one open task, in a second or so; return whether another waits."""
        task = self._open.pop(0)
        done, shape = len(self.verdicts), task.case.shape
        (on_step or self._on_step)(f"racing kernels: {done + 1} of {self.n_asked + 1}, {shape}")
        started = self._gate.clock()
        self._take(task, self._gate.answer(task.case))
        self._left_s -= self._gate.clock() - started
        return self.waiting

    def race(self, on_step: Step, budget_s: float = BUDGET_S) -> None:
        """Answer open tasks for `budget_s` seconds, a line before each."""
        self._left_s = budget_s
        while self.waiting:
            self.race_next(on_step)
        if self.fault:
            on_step(self.fault)

    def answers(self) -> list[Verdict[object]]:
        """Return the answers, open tasks answered with what is used meanwhile."""
        cases = [task.case for task in self._open]
        return self.verdicts + [
            Verdict(case.kernel, case.shape, None, "not raced on this machine yet")
            for case in cases
        ]

    def _take(self, task: TuningTask, verdict: Verdict[object]) -> None:
        task.settle(verdict.geometry)
        self.verdicts.append(verdict)


def refuse_force(policy: KernelPolicy, device: Device | None = DEFAULT_DEVICE) -> None:
    """Refuse to promise kernels where none can run.

    Raises:
        BadRequest: `policy` is force and there is no device.
    """
    if policy == "force" and device is None:
        raise BadRequest(
            "kernels is 'force' and there is no Metal device here; it needs auto or off"
        )


def put_kernels(
    pair: Pair,
    policy: KernelPolicy,
    device: Device | None = DEFAULT_DEVICE,
    gate: Gate | None = None,
    keys: tuple[int, ...] = RACED_KEYS,
    on_step: Step = lambda text: None,
) -> PairKernels | None:
    """Put layers of ours into both models, with the choices that are stored; None without.

    Nothing is put in where there is no device, no draft (there are no blocks then), or the
    policy is off. `gate` is this user's and this machine's by default; `keys` are the numbers of
    keys from which attention may be ours, and `on_step` is told of races held later.

    Raises:
        BadRequest: kernels are forced, and there is no device.
    """
    refuse_force(policy, device)
    target, draft = pair.target, pair.draft
    if device is None or policy == "off":
        return None
    if not (isinstance(target, DecoderTarget) and isinstance(draft, BoundDraft)):
        return None
    matrices = exchange_linears(target.model, embeddings=target.is_tied, device=device)
    matrices += exchange_linears(draft.model, embeddings=False, device=device)
    attentions = exchange_attention(target.model, device, keys)
    attentions += exchange_attention(draft.model, device, keys)
    convolutions = exchange_convolutions(draft.model, device)
    walks = exchange_selector(draft.model, device)
    heads = _put_heads(target, draft, device)
    rows = draft.block_size
    tasks = matrix_tasks(matrices, rows, device)
    tasks += attention_tasks(attentions, rows, device)
    tasks += convolution_tasks(convolutions, rows, device)
    tasks += walk_tasks(walks, rows, device)
    tasks += head_tasks(heads, rows, device)
    kernels = PairKernels(tasks, gate or gate_here(policy), on_step)
    kernels.recall()
    return kernels


def _put_heads(target: DecoderTarget, draft: BoundDraft, device: Device) -> list[FusedHead]:
    """Let target and draft ask for best tokens instead of logits, where a head is all there is."""
    heads = []
    if (weight := _head_matrix(target.head_layer)) is not None:
        target.fused_argmax = FusedHead(Head(weight), device)
        heads.append(target.fused_argmax)
    own = draft.model.lm_head if "lm_head" in draft.model else target.head_layer
    # a selecting draft walks through candidates, and takes their logits
    if type(draft) is BoundDraft and (weight := _head_matrix(own)) is not None:
        config = draft.model.config
        cap = config.final_logit_softcapping or None
        head = Head(outputs_of(weight, 0, draft.n_ids), config.output_multiplier, cap)
        draft.fused_argmax = FusedHead(head, device)
        heads.append(draft.fused_argmax)
    return heads


def _head_matrix(layer: nn.Module | None) -> Weight | None:
    return None if layer is None or "bias" in layer else matrix_of(layer)


def gate_here(policy: KernelPolicy) -> Gate:
    """Return the gate whose answers are kept in this user's configuration folder."""
    return Gate(GateStore(settings_folder() / "kernels", Machine.here()), policy)
