"""Memory estimates without reading weights, compared with real allocations."""

import gc
import json

import mlx.core as mx
import pytest

from dflash_mlx.cache import ContextCache
from dflash_mlx.config import CacheConfig
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.doctor.fit import longest, need, outline
from dflash_mlx.engine.load import PairFiles
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.resolved_request import resolve_request
from dflash_mlx.errors import PairMismatch
from dflash_mlx.hub.resolve import Resolved, find_packaged
from dflash_mlx.loading.compute import compute_here, weight_bytes
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs.pairing import choose
from tests.tiny import random_draft, tiny_target
from tests.tiny_configs import CONFIGS


@pytest.fixture(scope="module")
def pair():
    target = tiny_target("qwen3")
    return Pair(target, random_draft(target))


def filled_caches(pair, n_rows, prefill_step_size):
    """Return the caches after prefill of `n_rows` tokens; the prompt's last token is the anchor."""
    cache = pair.make_cache()
    prompt = [index % 250 for index in range(n_rows + 1)]
    assert list(prefill(pair, cache, prompt, prefill_step_size))[-1] == n_rows
    return cache


@pytest.mark.parametrize("n_rows", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("prefill_step_size", [64, 2048])
def test_cache_estimates_equal_real_caches(pair, n_rows, prefill_step_size):
    """A separate formula drifted from what the caches allocate."""
    wanted = need(pair, n_rows, prefill_step_size)
    cache = filled_caches(pair, n_rows, prefill_step_size)
    context = cache.context.nbytes if isinstance(cache.context, ContextCache) else 0
    assert wanted.draft_cache_bytes == context
    assert wanted.target_cache_bytes == cache.nbytes - context


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_every_familys_caches_are_estimated(family):
    """Windows and recurrent states do not grow like full caches."""
    pair = Pair(tiny_target(family))
    assert need(pair, 100, 64).target_cache_bytes == filled_caches(pair, 100, 64).nbytes


def test_weights_are_counted_in_their_compute_type(pair):
    """The CPU uses dense float32 weights, which are larger than the stored ones."""
    wanted = need(pair, 1)
    assert wanted.target_bytes == weight_bytes(pair.target.model)
    assert wanted.draft_bytes == weight_bytes(pair.draft.model)


def test_without_a_draft_its_bytes_are_zero():
    """--draft none must reduce the estimate."""
    wanted = need(Pair(tiny_target("qwen3")), 10)
    assert (wanted.draft_bytes, wanted.draft_cache_bytes) == (0, 0)


def test_the_longest_context_just_fits(pair):
    """The reported context length must fit."""
    enough = need(pair, 700).peak_bytes
    rows = longest(pair, enough)
    assert 0 < rows <= 1024
    assert need(pair, rows).peak_bytes <= enough


def test_longest_is_bounded_by_zero_and_the_context_length(pair):
    """The result exceeded the model's context length or was negative."""
    assert longest(pair, 10**12) == pair.target.shape.context_length
    assert longest(pair, 1000) == 0


def embedded():
    choice = choose("smollm2-135m")
    found = [find_packaged(name) for name in (choice.target, choice.draft)]
    if None in found:
        pytest.skip("the embedded pair is not installed")
    return PairFiles(choice, *(Resolved(path, "package") for path in found))


@pytest.fixture(scope="module")
def files():
    return embedded()


@pytest.fixture(scope="module")
def outlined(files):
    """Return the embedded pair without values, its estimate, and MLX's peak in bytes."""
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    loaded = outline(files)
    wanted = need(loaded.pair, 1000)
    return loaded, wanted, mx.get_peak_memory() - before


@pytest.mark.embedded
def test_an_outline_reads_no_weight(outlined):
    """`doctor` on a 60 GB model must not need 60 GB."""
    assert outlined[2] < 2 * 2**20


@pytest.mark.embedded
def test_the_estimate_is_what_mlx_allocates(files, outlined):
    """A wrong estimate leads to a useless download."""
    wanted = outlined[1]
    mx.clear_cache()
    before = mx.get_active_memory()
    target = load_target(files.target.path, compute_here())
    gc.collect()
    mx.clear_cache()
    allocated = mx.get_active_memory() - before
    assert wanted.target_bytes == weight_bytes(target.target.model)
    assert allocated == pytest.approx(wanted.target_bytes, rel=0.02)


@pytest.mark.embedded
def test_an_outline_has_the_settings(outlined):
    """Settings must come from the code that loads the pair."""
    loaded: LoadedPair = outlined[0]
    assert resolve_request(loaded).block_size == 8
    assert loaded.context_length == 8192
    assert loaded.cache_config == CacheConfig()


@pytest.mark.embedded
def test_an_outline_still_checks_the_pair(files, tmp_path):
    """A mismatched pair must be refused without loading weights."""
    source = files.draft.path
    for name in ("model.safetensors",):
        (tmp_path / name).symlink_to(source / name)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_target_layers": 36}))
    wrong = PairFiles(files.choice, files.target, Resolved(tmp_path, "path"))
    with pytest.raises(PairMismatch, match="expects target layers 36, this target has 30"):
        outline(wrong)
