"""Whether a pair fits: estimates that read no weight, held to what MLX really allocates."""

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


def held(pair, n_rows, prefill_step_size):
    """The caches that a real prompt of `n_rows` rows leaves (its last token is no row)."""
    cache = pair.make_cache()
    prompt = [index % 250 for index in range(n_rows + 1)]
    assert prefill(pair, cache, prompt, prefill_step_size, lambda done, total: True)
    return cache


@pytest.mark.parametrize("n_rows", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("prefill_step_size", [64, 2048])
def test_caches_take_what_was_estimated(pair, n_rows, prefill_step_size):
    """An estimate of its own making would drift from what the caches really allocate."""
    wanted = need(pair, n_rows, prefill_step_size)
    cache = held(pair, n_rows, prefill_step_size)
    context = cache.context.nbytes if isinstance(cache.context, ContextCache) else 0
    assert wanted.draft_cache_bytes == context
    assert wanted.target_cache_bytes == cache.nbytes - context


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_every_familys_caches_are_estimated(family):
    """Windows and recurrent states do not grow as full caches do."""
    pair = Pair(tiny_target(family))
    assert need(pair, 100, 64).target_cache_bytes == held(pair, 100, 64).nbytes


def test_weights_are_counted_as_they_are_used(pair):
    """Stored bytes say little: the CPU runs dense in float32."""
    wanted = need(pair, 1)
    assert wanted.target_bytes == weight_bytes(pair.target.model)
    assert wanted.draft_bytes == weight_bytes(pair.draft.model)


def test_without_a_draft_nothing_is_counted_for_one():
    """--draft none is what people try when memory is short."""
    wanted = need(Pair(tiny_target("qwen3")), 10)
    assert (wanted.draft_bytes, wanted.draft_cache_bytes) == (0, 0)


def test_the_longest_context_just_fits(pair):
    """A promise of a context that then does not fit is worse than none."""
    enough = need(pair, 700).peak_bytes
    rows = longest(pair, enough)
    assert 0 < rows <= 1024
    assert need(pair, rows).peak_bytes <= enough


def test_longest_knows_its_ends(pair):
    """More than the model was made for is no use, and less than nothing is nothing."""
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
    """The embedded pair without values, and the bytes that MLX held at most meanwhile."""
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    loaded = outline(files)
    wanted = need(loaded.pair, 1000)
    return loaded, wanted, mx.get_peak_memory() - before


@pytest.mark.embedded
def test_an_outline_reads_no_weight(outlined):
    """`doctor` on a 60 GB model must not take 60 GB to say that they do not fit."""
    assert outlined[2] < 2 * 2**20


@pytest.mark.embedded
def test_the_estimate_is_what_mlx_allocates(files, outlined):
    """The number that decides whether somebody downloads 60 GB had better be right."""
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
def test_an_outline_answers_questions_about_settings(outlined):
    """What would be loaded should be told by the code that loads it."""
    loaded: LoadedPair = outlined[0]
    assert resolve_request(loaded).block_size == 8
    assert loaded.context_length == 8192
    assert loaded.cache_config == CacheConfig()


@pytest.mark.embedded
def test_an_outline_still_checks_the_pair(files, tmp_path):
    """A pair that does not fit should not have to be loaded to be refused."""
    source = files.draft.path
    for name in ("model.safetensors",):
        (tmp_path / name).symlink_to(source / name)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_target_layers": 36}))
    wrong = PairFiles(files.choice, files.target, Resolved(tmp_path, "path"))
    with pytest.raises(PairMismatch, match="expects target layers 36, this target has 30"):
        outline(wrong)
