"""Kernels in a loaded pair: installed at load, tuned after the first answer, used if faster."""

import math
import threading
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.controller.cost_store import CostStore
from dflash_mlx.controller.costs import CostCurve
from dflash_mlx.engine import measured_costs
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.measured_costs import cost_key
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadRequest
from dflash_mlx.kernels.layers import OURS
from dflash_mlx.kernels.pair_kernels import install_kernels
from dflash_mlx.models.pair import Pair
from tests.metal.fake_chip import PLATFORM, FakeChip
from tests.tiny import answer, loaded_pair, random_draft, tiny_target

KEYS = (24,)  # context length from which attention is tuned: the prompt has 45 tokens
MATRICES = {"quantized_verify", "dense_verify", "head_argmax", "head_merge"}
KERNELS = MATRICES | {"verify_attention", "block_attention"}


def make_pair(bits=4):
    """Return a tiny pair with supported head sizes, quantized where K is divisible by 32."""
    target = tiny_target("qwen3", head_dim=64, num_hidden_layers=2)
    draft = random_draft(
        target, head_dim=64, sliding_window=None, layer_types=("full_attention",) * 2
    )
    for model in (target.model, draft.model):
        nn.quantize(model, 32, bits, class_predicate=_divides)
    return Pair(target, draft)


def _divides(path, layer):
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def install(pair, folder, chip=None, policy="auto", platform=PLATFORM):
    chip = chip or FakeChip()
    return install_kernels(pair, policy, chip, chip.autotuner(folder, policy, platform), KEYS)


def no_step(text):
    pass


@pytest.fixture(scope="module")
def stock():
    """The tokens that the pair generates with stock MLX."""
    return answer(make_pair(), 24)


def kinds(pair):
    return {type(layer) for _, layer in pair.target.model.named_modules()}


@pytest.mark.parametrize(("policy", "device"), [("off", FakeChip()), ("auto", None)])
def test_off_or_without_a_device_no_layer_is_replaced(tmp_path, policy, device):
    """On Linux and with --kernels off, every layer must be the one of mlx-lm."""
    pair = make_pair()
    before = kinds(pair)
    assert install_kernels(pair, policy, device) is None
    assert kinds(pair) == before
    assert not before & set(OURS.values())


def test_force_without_a_device_is_refused():
    """Forced kernels without Metal must be refused before anything is downloaded."""
    from dflash_mlx import load

    with pytest.raises(BadRequest, match="no Metal device"):
        install_kernels(make_pair(), "force", None)
    if not mx.metal.is_available():
        with pytest.raises(BadRequest, match="no Metal device"):
            load("no-such-model", kernels="force")


def test_without_a_draft_no_kernel_is_installed(tmp_path):
    """Plain decoding verifies no blocks."""
    assert install(Pair(tiny_target("qwen3")), tmp_path) is None


def test_loading_tunes_nothing(tmp_path, stock):
    """Tuning at load delayed the first token by 20 seconds."""
    chip = FakeChip()
    pair = make_pair()
    kernels = install(pair, tmp_path, chip)
    assert answer(pair, 24) == stock
    assert (chip.launched, chip.now, kernels.n_used) == ([], 0.0, 0)
    assert kernels.has_pending
    assert {result.reason for result in kernels.all_results()} == {
        "not autotuned on this machine yet"
    }


def test_selected_kernels_serve_the_blocks_and_change_no_token(tmp_path, stock):
    """After tuning, the forward passes of both models must launch every kernel."""
    chip, pair, steps = FakeChip(), make_pair(), []
    kernels = install(pair, tmp_path, chip)
    kernels.autotune(steps.append, budget_s=math.inf)
    assert kernels.n_used == kernels.n_cases == len(steps)
    assert steps[0].startswith(f"autotuning kernels: 1 of {kernels.n_cases}, ")
    chip.launched.clear()
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


def test_stored_results_are_used_at_load(tmp_path, stock):
    """Tuning runs once per chip and version, not at every start."""
    install(make_pair(), tmp_path).autotune(no_step, budget_s=math.inf)
    chip, pair = FakeChip(), make_pair()
    kernels = install(pair, tmp_path, chip)
    assert kernels.n_used == kernels.n_cases
    assert not kernels.has_pending
    assert chip.launched == []
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


@pytest.mark.parametrize("change", [{"chip": "Apple M5"}, {"macos": "27.0"}, {"mlx": "0.33.0"}])
def test_stored_results_of_another_platform_are_not_used(tmp_path, change):
    """Kernels may be slower or wrong on another chip, macOS or MLX version."""
    install(make_pair(), tmp_path).autotune(no_step, budget_s=math.inf)
    kernels = install(make_pair(), tmp_path, platform=replace(PLATFORM, **change))
    assert kernels.n_used == 0 and kernels.has_pending


class Typed(FakeChip):
    """A chip that records the attention kernels it launches and their types."""

    def __init__(self):
        super().__init__()
        self.attended = set()

    def run(self, launch):
        if "attention" in launch.kernel.name:
            self.attended.add((launch.kernel.name, dict(launch.template)["T"]))
        return super().run(launch)


def test_attention_is_tuned_in_the_type_it_runs_in(tmp_path):
    """Float32 norms of GGUF files make rows float32; a tile for float16 rows does not fit them."""
    chip, pair = Typed(), make_pair()
    pair.target.model.set_dtype(mx.float16)
    for _, layer in pair.target.model.named_modules():
        if isinstance(layer, nn.RMSNorm):
            layer.weight = layer.weight.astype(mx.float32)
    install(pair, tmp_path, chip, "force").autotune(no_step, budget_s=math.inf)
    tuned, chip.attended = chip.attended, set()
    answer(pair, 24)
    assert (
        chip.attended
        == tuned
        == {("verify_attention", mx.float32), ("block_attention", mx.float32)}
    )


def test_rows_of_another_type_use_stock_mlx(tmp_path):
    """A geometry for 16-bit rows needs too much threadgroup memory for float32 rows."""
    chip, pair = Typed(), make_pair()
    install(pair, tmp_path, chip, "force").autotune(no_step, budget_s=math.inf)
    pair.target.model.set_dtype(mx.float16)
    chip.attended = set()
    answer(pair, 24)
    assert chip.attended == {("block_attention", mx.float32)}


def nan(y):
    return mx.where(mx.arange(y.size).reshape(y.shape) == 3, mx.nan, y).astype(y.dtype)


def off(y):
    return y + (0.05 * mx.abs(y).max()).astype(y.dtype)


@pytest.mark.parametrize("policy", ["auto", "force"])
@pytest.mark.parametrize("spoil", [nan, off])
def test_a_wrong_kernel_is_never_used(tmp_path, stock, spoil, policy):
    """A kernel that returns wrong values or NaN must not affect a token."""
    chip, pair = FakeChip(spoil=spoil), make_pair()
    kernels = install(pair, tmp_path, chip, policy)
    kernels.autotune(no_step, budget_s=math.inf)
    assert kernels.n_used == 0
    assert all(result.reason.startswith("wrong: ") for result in kernels.results)
    chip.launched.clear()
    assert answer(pair, 24) == stock
    assert chip.launched == []


def refuse(y):
    raise ValueError("256 threads asked, 224 is the limit of this pipeline")


def test_a_chip_that_refuses_every_geometry_keeps_stock_mlx(tmp_path, stock):
    """Thread limits appear only when a launch is evaluated; that must not end the program."""
    chip, pair = FakeChip(spoil=refuse), make_pair()
    kernels = install(pair, tmp_path, chip)
    kernels.autotune(no_step, budget_s=math.inf)
    assert {result.reason.partition(":")[0] for result in kernels.results} == {
        "refused by this chip"
    }
    assert answer(pair, 24) == stock


def test_slower_kernels_are_used_when_forced_only(tmp_path, stock):
    """The policy auto must not make decoding slower."""
    slow = {"ours_s": 0.002, "stock_s": 0.001}
    kernels = install(make_pair(), tmp_path, FakeChip(**slow))
    kernels.autotune(no_step, budget_s=math.inf)
    assert kernels.n_used == 0
    chip, pair = FakeChip(**slow), make_pair()
    forced = install(pair, tmp_path, chip, "force")
    forced.autotune(no_step, budget_s=math.inf)
    assert forced.n_used == forced.n_cases
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


def test_tuning_ends_after_its_budget(tmp_path):
    """Pending cases use stock MLX and are tuned at the next start."""
    chip = FakeChip(ours_s=0.05, stock_s=0.1)
    kernels = install(make_pair(), tmp_path, chip)
    kernels.autotune(no_step)
    assert 0 < kernels.n_used < kernels.n_cases
    assert not kernels.has_pending
    again = install(make_pair(), tmp_path, FakeChip())
    assert again.n_used >= kernels.n_used and again.has_pending


def test_a_folder_that_cannot_be_written_keeps_results_in_memory(tmp_path):
    """A read-only home must not disable kernels, and must be reported."""
    (tmp_path / "kernels").write_text("a file")
    steps = []
    kernels = install(make_pair(), tmp_path / "kernels" / "folder")
    kernels.autotune(steps.append, budget_s=math.inf)
    assert kernels.n_used == kernels.n_cases
    assert steps[-1].startswith("kernel choices could not be stored in ")


class Loaded:
    """An engine whose pair has kernels on a simulated chip."""

    def __init__(self, folder, **chip):
        self.chip, self.steps = FakeChip(**chip), []
        worker = Worker("test")

        def make():
            pair = make_pair()
            autotuner = self.chip.autotuner(folder)
            kernels = install_kernels(pair, "auto", self.chip, autotuner, KEYS, self.steps.append)
            return loaded_pair(pair, kernels=kernels)

        self.engine = Engine(worker.run(make), worker)
        self.kernels = self.engine.loaded.kernels

    def settle(self):
        """Wait until no tuning case is pending."""
        while self.engine.worker.run(lambda: self.kernels.has_pending):
            pass


SHORT = GenerationConfig(max_tokens=8)


def test_tuning_runs_after_the_first_answer(tmp_path):
    """Tuning must not delay the first answer; later answers may use kernels."""
    made = Loaded(tmp_path)
    with made.engine as engine:
        assert (made.chip.launched, made.steps) == ([], [])
        first = engine.generate("Hello", SHORT)
        made.settle()
        assert made.kernels.n_used == made.kernels.n_cases == len(made.steps)
        assert made.steps[-1].startswith(
            f"autotuning kernels: {len(made.steps)} of {len(made.steps)}"
        )
        made.chip.launched.clear()
        assert engine.generate("Hello", SHORT).tokens == first.tokens
        assert set(made.chip.launched) >= MATRICES


def test_a_request_waits_for_one_case_at_most(tmp_path):
    """A request during tuning waited for all remaining cases, up to 20 seconds."""
    made = Loaded(tmp_path)
    tuned, early = [], []
    requested, answered = threading.Event(), threading.Event()
    tune_one = made.kernels.tune_next

    def tune_next():
        if tuned and not answered.wait(60):
            early.append(True)  # a second case ran before the request
        another_is_pending = tune_one()
        tuned.append(True)
        requested.wait(60)  # the request is queued before the second case
        return another_is_pending

    made.kernels.tune_next = tune_next
    with made.engine as engine:
        engine.generate("Hello", SHORT)
        while not tuned:
            pass
        stream = engine.stream("Again", SHORT)
        reader = threading.Thread(target=lambda: next(iter(stream)) and answered.set())
        reader.start()
        requested.set()
        reader.join()
        stream.cancel()
    assert early == []


def test_closing_ends_tuning(tmp_path):
    """`generate` exits after one answer and must not wait for all cases."""
    made = Loaded(tmp_path)
    closing = []
    evaluate = made.chip.evaluate

    def close_meanwhile(array):
        if not closing:
            thread = threading.Thread(target=made.engine.worker.close)
            thread.start()
            closing.append(thread)
            while not made.engine.worker._closed:
                pass
        evaluate(array)

    object.__setattr__(made.kernels._autotuner, "evaluate", close_meanwhile)
    made.engine.generate("Hello", SHORT)
    while not closing:
        pass
    closing[0].join()
    assert len(made.kernels.results) == 1


def test_tuning_can_run_before_the_first_answer(tmp_path):
    """A benchmark must tune before it measures, not between its measurements."""
    made = Loaded(tmp_path)
    with made.engine as engine:
        steps = []
        engine.autotune_kernels(steps.append)
        assert made.kernels.n_used == made.kernels.n_cases == len(steps)


def test_costs_belong_to_the_kernels_they_were_measured_with(tmp_path):
    """Costs of stock MLX are too high for large blocks that a kernel made cheap."""
    pair = make_pair()
    kernels = install(pair, tmp_path / "kernels")
    loaded = loaded_pair(pair, kernels=kernels)
    before = cost_key(loaded)
    kernels.autotune(no_step, budget_s=math.inf)
    after = cost_key(loaded)
    assert (before.kernels, before.name) != (after.kernels, after.name)
    assert before.kernels == cost_key(loaded_pair(pair)).kernels == "stock"


def test_costs_are_stored_under_the_kernels_they_were_measured_with(tmp_path, monkeypatch):
    """Stock costs were stored under the kernels that tuning selected after the answer."""
    measured = []
    curve = CostCurve((1, 4), (0,), ((0.01, 0.01),), 0.0)
    monkeypatch.setattr(measured_costs, "_measure", lambda loaded: measured.append(loaded) or curve)
    pair = make_pair()
    kernels = install(pair, tmp_path / "kernels")
    loaded = measured_costs.with_costs(
        loaded_pair(pair, kernels=kernels), no_step, CostStore(tmp_path)
    )
    measured_costs.remeasure_costs(loaded)
    kernels.autotune(no_step, budget_s=math.inf)
    assert cost_key(loaded).kernels == "stock"
    measured_costs.remeasure_costs(loaded)
    measured_costs.remeasure_costs(loaded)
    assert cost_key(loaded).kernels == kernels.digest != "stock"
    assert len(measured) == 2
