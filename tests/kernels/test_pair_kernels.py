"""Kernels in a loaded pair: put in, raced after the first answer, used only if right and faster."""

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
from dflash_mlx.kernels.pair_kernels import put_kernels
from dflash_mlx.models.pair import Pair
from tests.metal.fake_chip import MACHINE, FakeChip
from tests.tiny import answer, loaded_pair, random_draft, tiny_target

KEYS = (24,)  # contexts at which attention is chosen: the prompt has 45 tokens
MATRICES = {"quantized_verify", "dense_verify", "head_argmax", "head_merge"}
KERNELS = MATRICES | {"verify_attention", "block_attention"}


def make_pair(bits=4):
    """A tiny pair with heads that the kernels take; what divides by 32 is quantized."""
    target = tiny_target("qwen3", head_dim=64, num_hidden_layers=2)
    draft = random_draft(
        target, head_dim=64, sliding_window=None, layer_types=("full_attention",) * 2
    )
    for model in (target.model, draft.model):
        nn.quantize(model, 32, bits, class_predicate=_divides)
    return Pair(target, draft)


def _divides(path, layer):
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def put(pair, folder, chip=None, policy="auto", machine=MACHINE):
    chip = chip or FakeChip()
    return put_kernels(pair, policy, chip, chip.gate(folder, policy, machine), KEYS)


def no_step(text):
    pass


@pytest.fixture(scope="module")
def stock():
    """What the pair writes with stock MLX alone."""
    return answer(make_pair(), 24)


def kinds(pair):
    return {type(layer) for _, layer in pair.target.model.named_modules()}


@pytest.mark.parametrize(("policy", "device"), [("off", FakeChip()), ("auto", None)])
def test_off_or_without_a_device_the_models_stay_as_they_are(tmp_path, policy, device):
    """On Linux, and for whoever wants none of this, every layer is mlx-lm's own."""
    pair = make_pair()
    before = kinds(pair)
    assert put_kernels(pair, policy, device) is None
    assert kinds(pair) == before
    assert not before & set(OURS.values())


def test_force_without_a_device_is_refused():
    """A promise that cannot be kept has to be refused before anything is downloaded."""
    from dflash_mlx import load

    with pytest.raises(BadRequest, match="no Metal device"):
        put_kernels(make_pair(), "force", None)
    if not mx.metal.is_available():
        with pytest.raises(BadRequest, match="no Metal device"):
            load("no-such-model", kernels="force")


def test_without_a_draft_there_are_no_blocks(tmp_path):
    """Plain decoding reads one row at a time, which stock MLX does well."""
    assert put(Pair(tiny_target("qwen3")), tmp_path) is None


def test_loading_races_nothing(tmp_path, stock):
    """Twenty seconds before the first word would drive everybody away."""
    chip = FakeChip()
    pair = make_pair()
    kernels = put(pair, tmp_path, chip)
    assert answer(pair, 24) == stock
    assert (chip.launched, chip.now, kernels.n_used) == ([], 0.0, 0)
    assert kernels.waiting
    assert {verdict.reason for verdict in kernels.answers()} == {"not raced on this machine yet"}


def test_kernels_that_won_serve_the_blocks_and_change_no_token(tmp_path, stock):
    """From a race to forward passes of both models: every kernel is reached."""
    chip, pair, steps = FakeChip(), make_pair(), []
    kernels = put(pair, tmp_path, chip)
    kernels.race(steps.append, budget_s=math.inf)
    assert kernels.n_used == kernels.n_asked == len(steps)
    assert steps[0].startswith(f"racing kernels: 1 of {kernels.n_asked}, ")
    chip.launched.clear()
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


def test_a_stored_answer_is_used_at_once(tmp_path, stock):
    """Racing happens once per chip and version, not at each start."""
    put(make_pair(), tmp_path).race(no_step, budget_s=math.inf)
    chip, pair = FakeChip(), make_pair()
    kernels = put(pair, tmp_path, chip)
    assert kernels.n_used == kernels.n_asked
    assert not kernels.waiting
    assert chip.launched == []
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


@pytest.mark.parametrize("change", [{"chip": "Apple M5"}, {"macos": "27.0"}, {"mlx": "0.33.0"}])
def test_a_stored_answer_does_not_cross_a_version(tmp_path, change):
    """Another chip, macOS or MLX may be slower, or wrong."""
    put(make_pair(), tmp_path).race(no_step, budget_s=math.inf)
    kernels = put(make_pair(), tmp_path, machine=replace(MACHINE, **change))
    assert kernels.n_used == 0 and kernels.waiting


class Typed(FakeChip):
    """A chip that notes which attentions it was given, and in which types."""

    def __init__(self):
        super().__init__()
        self.attended = set()

    def run(self, launch):
        if "attention" in launch.kernel.name:
            self.attended.add((launch.kernel.name, dict(launch.template)["T"]))
        return super().run(launch)


def test_attention_is_raced_in_the_type_it_will_be_used_in(tmp_path):
    """Norms in float32 widen the halves of a GGUF file: a tile raced in halves would not fit."""
    chip, pair = Typed(), make_pair()
    pair.target.model.set_dtype(mx.float16)
    for _, layer in pair.target.model.named_modules():
        if isinstance(layer, nn.RMSNorm):
            layer.weight = layer.weight.astype(mx.float32)
    put(pair, tmp_path, chip, "force").race(no_step, budget_s=math.inf)
    raced, chip.attended = chip.attended, set()
    answer(pair, 24)
    assert (
        chip.attended
        == raced
        == {("verify_attention", mx.float32), ("block_attention", mx.float32)}
    )


def test_rows_of_another_type_are_left_to_stock_mlx(tmp_path):
    """The kernel's memory was reckoned for another type, and Metal refuses what exceeds it."""
    chip, pair = Typed(), make_pair()
    put(pair, tmp_path, chip, "force").race(no_step, budget_s=math.inf)
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
    """Whatever a compiler makes of a kernel, a wrong or no number must not reach a token."""
    chip, pair = FakeChip(spoil=spoil), make_pair()
    kernels = put(pair, tmp_path, chip, policy)
    kernels.race(no_step, budget_s=math.inf)
    assert kernels.n_used == 0
    assert all(verdict.reason.startswith("wrong: ") for verdict in kernels.verdicts)
    chip.launched.clear()
    assert answer(pair, 24) == stock
    assert chip.launched == []


def refuse(y):
    raise ValueError("256 threads asked, 224 is the limit of this pipeline")


def test_a_chip_that_refuses_every_geometry_keeps_stock_mlx(tmp_path, stock):
    """Thread limits show only when a launch is evaluated; that must not end the program."""
    chip, pair = FakeChip(spoil=refuse), make_pair()
    kernels = put(pair, tmp_path, chip)
    kernels.race(no_step, budget_s=math.inf)
    assert {verdict.reason.partition(":")[0] for verdict in kernels.verdicts} == {
        "refused by this chip"
    }
    assert answer(pair, 24) == stock


def test_slower_kernels_are_used_when_forced_only(tmp_path, stock):
    """auto promises speed; force is for trying what is right."""
    slow = {"ours_s": 0.002, "stock_s": 0.001}
    kernels = put(make_pair(), tmp_path, FakeChip(**slow))
    kernels.race(no_step, budget_s=math.inf)
    assert kernels.n_used == 0
    chip, pair = FakeChip(**slow), make_pair()
    forced = put(pair, tmp_path, chip, "force")
    forced.race(no_step, budget_s=math.inf)
    assert forced.n_used == forced.n_asked
    assert answer(pair, 24) == stock
    assert set(chip.launched) == KERNELS


def test_races_end_after_their_budget(tmp_path):
    """What there was no time for stays stock MLX and is asked again at the next start."""
    chip = FakeChip(ours_s=0.05, stock_s=0.1)
    kernels = put(make_pair(), tmp_path, chip)
    kernels.race(no_step)
    assert 0 < kernels.n_used < kernels.n_asked
    assert not kernels.waiting
    again = put(make_pair(), tmp_path, FakeChip())
    assert again.n_used == kernels.n_used and again.waiting


def test_a_folder_that_cannot_be_written_costs_the_memory_only(tmp_path):
    """A read-only home must not take the kernels away, and is said."""
    (tmp_path / "kernels").write_text("a file")
    steps = []
    kernels = put(make_pair(), tmp_path / "kernels" / "folder")
    kernels.race(steps.append, budget_s=math.inf)
    assert kernels.n_used == kernels.n_asked
    assert steps[-1].startswith("kernel choices could not be kept in ")


class Loaded:
    """An engine whose pair has kernels on a fake chip."""

    def __init__(self, folder, **chip):
        self.chip, self.steps = FakeChip(**chip), []
        worker = Worker("test")

        def make():
            pair = make_pair()
            gate = self.chip.gate(folder)
            kernels = put_kernels(pair, "auto", self.chip, gate, KEYS, self.steps.append)
            return loaded_pair(pair, kernels=kernels)

        self.engine = Engine(worker.run(make), worker)
        self.kernels = self.engine.loaded.kernels

    def settle(self):
        """Wait until no race is waiting."""
        while self.engine.worker.run(lambda: self.kernels.waiting):
            pass


SHORT = GenerationConfig(max_tokens=8)


def test_races_are_held_after_the_first_answer(tmp_path):
    """The first word comes first; from the second answer on kernels may serve."""
    made = Loaded(tmp_path)
    with made.engine as engine:
        assert (made.chip.launched, made.steps) == ([], [])
        first = engine.generate("Hello", SHORT)
        made.settle()
        assert made.kernels.n_used == made.kernels.n_asked == len(made.steps)
        assert made.steps[-1].startswith(f"racing kernels: {len(made.steps)} of {len(made.steps)}")
        made.chip.launched.clear()
        assert engine.generate("Hello", SHORT).tokens == first.tokens
        assert set(made.chip.launched) >= MATRICES


def test_a_request_waits_for_one_race_at_most(tmp_path):
    """Whoever types quickly must not wait for twenty seconds of races."""
    made = Loaded(tmp_path)
    raced, asked = [], threading.Event()
    answer_one = made.kernels.race_next

    def race_next():
        another_waits = answer_one()
        raced.append(True)
        asked.wait(60)  # the request is in the queue before the second race
        return another_waits

    made.kernels.race_next = race_next
    with made.engine as engine:
        engine.generate("Hello", SHORT)
        while not raced:
            pass
        stream = engine.stream("Again", SHORT)
        before = []
        reader = threading.Thread(target=lambda: before.append(next(iter(stream)) and len(raced)))
        reader.start()
        asked.set()
        reader.join()
        stream.cancel()
        assert before[0] <= 2


def test_closing_ends_the_races(tmp_path):
    """`generate` answers once and leaves; it must not stay for all races."""
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

    object.__setattr__(made.kernels._gate, "evaluate", close_meanwhile)
    made.engine.generate("Hello", SHORT)
    while not closing:
        pass
    closing[0].join()
    assert len(made.kernels.verdicts) == 1


def test_races_can_be_asked_for_before_the_first_answer(tmp_path):
    """A benchmark has to race before it measures, not in between."""
    made = Loaded(tmp_path)
    with made.engine as engine:
        steps = []
        engine.autotune_kernels(steps.append)
        assert made.kernels.n_used == made.kernels.n_asked == len(steps)


def test_costs_belong_to_the_kernels_they_were_measured_with(tmp_path):
    """Costs of stock MLX would keep auto from wide blocks that have become cheap."""
    pair = make_pair()
    kernels = put(pair, tmp_path / "kernels")
    loaded = loaded_pair(pair, kernels=kernels)
    before = cost_key(loaded)
    kernels.race(no_step, budget_s=math.inf)
    after = cost_key(loaded)
    assert (before.kernels, before.name) != (after.kernels, after.name)
    assert before.kernels == cost_key(loaded_pair(pair)).kernels == "stock"


def test_costs_are_kept_as_those_of_the_kernels_they_were_measured_with(tmp_path, monkeypatch):
    """One answer and away: stock costs were filed under kernels that had won meanwhile."""
    measured = []
    curve = CostCurve((1, 4), (0,), ((0.01, 0.01),), 0.0)
    monkeypatch.setattr(measured_costs, "_measure", lambda loaded: measured.append(loaded) or curve)
    pair = make_pair()
    kernels = put(pair, tmp_path / "kernels")
    loaded = measured_costs.with_costs(
        loaded_pair(pair, kernels=kernels), no_step, CostStore(tmp_path)
    )
    measured_costs.remeasure_costs(loaded)
    kernels.race(no_step, budget_s=math.inf)
    assert cost_key(loaded).kernels == "stock"
    measured_costs.remeasure_costs(loaded)
    measured_costs.remeasure_costs(loaded)
    assert cost_key(loaded).kernels == kernels.digest != "stock"
    assert len(measured) == 2
