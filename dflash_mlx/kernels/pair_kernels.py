"""Installs kernel layers in a loaded pair and runs the tuning tasks that enable them.

The device is an argument, so that all of this also runs without a Mac.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import mlx.nn as nn

from dflash_mlx.config import KernelPolicy
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.attention import replace_attention
from dflash_mlx.kernels.autotuner import Autotuner, TuningResult
from dflash_mlx.kernels.choices import TUNED_KEYS
from dflash_mlx.kernels.draft2 import replace_convolutions, replace_selector
from dflash_mlx.kernels.fused_head import N_BEST, FusedHead
from dflash_mlx.kernels.layers import matrix_of, norm_dtype, replace_linears, row_dtype
from dflash_mlx.kernels.result_store import ResultStore, TuningPlatform
from dflash_mlx.kernels.tuning_tasks import (
    TuningTask,
    attention_tasks,
    by_rows,
    convolution_tasks,
    head_tasks,
    matrix_tasks,
    path_tasks,
)
from dflash_mlx.kernels.unsupported import unsupported_layers
from dflash_mlx.metal.build import DEFAULT_DEVICE, Device
from dflash_mlx.metal.head_argmax import Head
from dflash_mlx.metal.matrix_cases import Weight, outputs_of, weight_dtype
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.draft.dflash2 import SelectingDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.system.settings import settings_folder

BUDGET_S: Final = 20.0
"""Seconds of tuning after one start. Requests arrive in between, and a case takes about one."""

Step = Callable[[str], None]
"""Receives one line of text before each tuning case."""


class PairKernels:
    """The tuning tasks of one pair and their results so far.

    Call it on the thread that owns the pair, between requests: a result changes what the next
    verified block launches.
    """

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        autotuner: Autotuner,
        on_step: Step = lambda text: None,
        unsupported: Sequence[TuningResult[object]] = (),
    ) -> None:
        self.policy = autotuner.policy
        self.results: list[TuningResult[object]] = []
        """Results of the tasks that are done, stored or tuned now."""
        self._autotuner = autotuner
        self._unsupported = list(unsupported)
        self._on_step = on_step
        self._pending = list(tasks)
        self._remaining_s = BUDGET_S

    @property
    def n_cases(self) -> int:
        """Number of tuning cases, done or pending."""
        return len(self.results) + len(self._pending)

    @property
    def n_used(self) -> int:
        """Number of tuning cases for which a kernel was selected."""
        return sum(result.geometry is not None for result in self.results)

    @property
    def has_pending(self) -> bool:
        """Whether a task is pending and the time budget is not used up."""
        return bool(self._pending) and self._remaining_s > 0

    @property
    def store_error(self) -> str | None:
        """Why results could not be written to disk, or None."""
        return self._autotuner.store.error

    @property
    def digest(self) -> str:
        """A short hash of the selected kernels, or "stock"; learned costs are stored under it."""
        used = sorted(f"{v.kernel} {v.shape} {v.geometry}" for v in self.results if v.geometry)
        return hashlib.sha256("\n".join(used).encode()).hexdigest()[:12] if used else "stock"

    def load_stored(self) -> None:
        """Apply the stored results. Uses no device time."""
        pending = []
        for task in self._pending:
            result = self._autotuner.stored(task.case)
            if result is None:
                pending.append(task)
            else:
                self._apply(task, result)
        self._pending = pending

    def tune_next(self, on_step: Step | None = None) -> bool:
        """Tune the next pending case, in about a second; return whether another is pending."""
        task = self._pending.pop(0)
        done, shape = len(self.results), task.case.shape
        (on_step or self._on_step)(f"autotuning kernels: {done + 1} of {self.n_cases + 1}, {shape}")
        started = self._autotuner.clock()
        self._apply(task, self._autotuner.tune(task.case))
        self._remaining_s -= self._autotuner.clock() - started
        return self.has_pending

    def autotune(self, on_step: Step, budget_s: float = BUDGET_S) -> None:
        """Tune pending cases for at most `budget_s` seconds.

        `on_step` receives one line before each case, and one if results could not be stored.
        """
        self._remaining_s = budget_s
        while self.has_pending:
            self.tune_next(on_step)
        if self.store_error:
            on_step(self.store_error)

    def all_results(self) -> list[TuningResult[object]]:
        """Return a result for every case, and for every kind of layer that no kernel supports.

        Pending cases and unsupported layers use stock MLX.
        """
        cases = [task.case for task in self._pending]
        pending: list[TuningResult[object]] = [
            TuningResult(case.kernel, case.shape, None, "not autotuned on this machine yet")
            for case in cases
        ]
        return self.results + pending + self._unsupported

    def _apply(self, task: TuningTask, result: TuningResult[object]) -> None:
        task.select(result.geometry)
        self.results.append(result)


def refuse_force(policy: KernelPolicy, device: Device | None = DEFAULT_DEVICE) -> None:
    """Check that forced kernels can run.

    Raises:
        BadRequest: `policy` is "force" and this machine has no Metal device.
    """
    if policy == "force" and device is None:
        raise BadRequest(
            "kernels is 'force' and this machine has no Metal device; use 'auto' or 'off'"
        )


def install_kernels(
    pair: Pair,
    policy: KernelPolicy,
    device: Device | None = DEFAULT_DEVICE,
    autotuner: Autotuner | None = None,
    keys: tuple[int, ...] = TUNED_KEYS,
    on_step: Step = lambda text: None,
) -> PairKernels | None:
    """Replace layers of both models by kernel layers and apply the stored tuning results.

    Returns None, and replaces nothing, without a device, without a draft (there are no blocks to
    verify), or with the policy "off". `keys` are the context lengths from which attention may use
    a kernel. `on_step` receives one line before each tuning case that runs later.

    Raises:
        BadRequest: `policy` is "force" and this machine has no Metal device.
    """
    refuse_force(policy, device)
    target, draft = pair.target, pair.draft
    if device is None or policy == "off":
        return None
    if not (isinstance(target, DecoderTarget) and isinstance(draft, BoundDraft)):
        return None
    matrices = replace_linears(target.model, embeddings=target.is_tied, device=device)
    matrices += replace_linears(draft.model, embeddings=False, device=device)
    attentions = replace_attention(target.model, device, keys)
    attentions += replace_attention(draft.model, device, keys)
    convolutions = replace_convolutions(draft.model, device)
    selectors = replace_selector(draft.model, device)
    heads = _fuse_heads(target, draft, device)
    rows = draft.block_size
    # heads first: one launch saves writing and reading all logits
    tasks = head_tasks(heads, rows, device)
    tasks += matrix_tasks(matrices, rows, device)
    tasks += attention_tasks(attentions, rows, device)
    tasks += convolution_tasks(convolutions, rows, device)
    tasks += path_tasks(selectors, rows, device)
    kernels = PairKernels(
        by_rows(tasks),
        autotuner or default_autotuner(policy),
        on_step,
        unsupported_layers(target.model) + unsupported_layers(draft.model),
    )
    kernels.load_stored()
    return kernels


def _fuse_heads(target: DecoderTarget, draft: BoundDraft, device: Device) -> list[FusedHead]:
    """Give target and draft a fused head where their head is a matrix without a bias."""
    heads = []
    if (weight := _head_matrix(target.head_layer)) is not None:
        dtype = row_dtype(weight_dtype(weight), norm_dtype(target.model))
        target.fused_argmax = FusedHead(Head(weight), N_BEST, dtype, device)
        heads.append(target.fused_argmax)
    shares_head = "lm_head" not in draft.model
    own = target.head_layer if shares_head else draft.model.lm_head
    if (weight := _head_matrix(own)) is None:
        return heads
    config = draft.model.config
    cap = config.final_logit_softcapping or None
    head = Head(outputs_of(weight, 0, draft.n_ids), config.output_multiplier, cap)
    # a shared head gets rows in the type of the target's embedding (`BoundDraft.for_head`)
    rows = draft.head_dtype if shares_head else norm_dtype(draft.model)
    dtype = row_dtype(weight_dtype(weight), rows)
    if isinstance(draft, SelectingDraft):
        count = draft.model.candidate_selector.top_k
        draft.fused_candidates = FusedHead(head, count, dtype, device)
        heads.append(draft.fused_candidates)
    else:
        draft.fused_argmax = FusedHead(head, N_BEST, dtype, device)
        heads.append(draft.fused_argmax)
    return heads


def _head_matrix(layer: nn.Module | None) -> Weight | None:
    return None if layer is None or "bias" in layer else matrix_of(layer)


def default_autotuner(policy: KernelPolicy, *, retry: bool = False) -> Autotuner:
    """Return the autotuner that stores its results in this user's settings folder.

    With `retry`, cases that failed or ended the process before are tuned again.
    """
    store = ResultStore(settings_folder() / "kernels", TuningPlatform.here())
    return Autotuner(store, policy, retry=retry)
