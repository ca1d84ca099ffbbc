"""Recipes set bits by role and path."""

import mlx.core as mx
import pytest

from dflash_mlx.convert.options import Quantization
from dflash_mlx.convert.plan.auto_recipe import CANDIDATE_BITS, QuantizationErrors, allocate_bits
from dflash_mlx.convert.plan.recipe import named_recipe, role_of
from dflash_mlx.errors import BadRequest, UnsupportedModel
from tests.convert.checkpoints import run, target_folder, weights_of

BASE = Quantization(4, 64)


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("language_model.lm_head.weight", "head"),
        ("model.layers.3.self_attn.q_proj", "attention"),
        ("model.layers.3.self_attn.q_norm.weight", "norm"),
        ("model.layers.3.linear_attn.in_proj_qkv.weight", "attention"),
        ("model.layers.3.mlp.switch_mlp.up_proj.weight", "mlp"),
        ("model.layers.3.input_layernorm.weight", "norm"),
        ("fc.weight", "fc"),
        ("hidden_norm.weight", "norm"),
        ("layers.0.attention_conv.kernel_projection.weight", "other"),
        ("candidate_selector.predecessor_codebook.weight", "other"),
    ],
)
def test_every_weight_has_one_role(path, role):
    """A weight with a wrong role gets the bits of another role."""
    assert role_of(path, tied=False) == role


def test_a_tied_embedding_is_the_head():
    """A tied embedding is multiplied at every token, as a head is."""
    assert role_of("model.embed_tokens.weight", tied=True) == "head"


def test_a_recipe_file_sets_bits_by_role_and_path(tmp_path):
    """The first matching path precedes the role, and the role precedes the default."""
    file = tmp_path / "mine.toml"
    file.write_text(
        "[roles]\nattention = 6\nnorm = false\n"
        '[paths]\n"*.0.*" = {bits = 8, group_size = 32}\n"*.v_proj" = false\n'
    )
    recipe = named_recipe(str(file), BASE)
    assert recipe.choose("layers.0.self_attn.q_proj", "attention") == Quantization(8, 32)
    assert recipe.choose("layers.1.self_attn.q_proj", "attention") == Quantization(6, 64)
    assert recipe.choose("layers.1.self_attn.v_proj", "attention") is None
    assert recipe.choose("layers.1.mlp.up_proj", "mlp") == BASE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[roles]\nattnetion = 6", "attnetion"),
        ("[layers]", "layers"),
        ("[roles]\nmlp = 7", "needs one of"),
        ("[roles]\nmlp = 'wide'", "needs a number of bits"),
        ("[roles]\nmlp = true", "needs a number of bits"),
        ("roles = 4", "tables"),
        ("[roles", "recipe cannot be read"),
    ],
)
def test_an_invalid_recipe_file_gives_one_line(tmp_path, text, words):
    """A typing error must not select the default."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(BadRequest, match=words):
        named_recipe(str(file), BASE)


def test_an_unknown_name_lists_the_known_ones():
    """The error must list the names."""
    with pytest.raises(BadRequest, match="uniform, head8, draft, auto"):
        named_recipe("head9", BASE)


def test_a_path_that_matches_nothing_is_refused(tmp_path):
    """A pattern with a typing error would have no effect."""
    file = tmp_path / "mine.toml"
    file.write_text('[paths]\n"model.layer.0.*" = 8\n')
    source = target_folder(tmp_path / "source")
    with pytest.raises(BadRequest, match=r"model\.layer\.0"):
        run(source, tmp_path / "out", recipe=str(file))


def errors(scale):
    return tuple(scale / 2**bits for bits in CANDIDATE_BITS)


def test_the_largest_output_error_gets_more_bits():
    """Mixed bits must lower the largest error at the same size."""
    found = [
        QuantizationErrors("a", 1000, errors(1.0)),
        QuantizationErrors("b", 1000, errors(16.0)),
    ]
    widths = allocate_bits(found, 4.5, group_size=64)
    assert widths == {"a": 2, "b": 6}


@pytest.mark.parametrize("average", [2.5, 3.2, 4.5, 6.75, 8.5])
def test_the_average_is_not_exceeded(average):
    """The result must not be larger than the requested average."""
    found = [QuantizationErrors(f"w{i}", 100 * (i + 1), errors(i + 0.5)) for i in range(20)]
    widths = allocate_bits(found, average, group_size=64)
    total = sum(weight.n_weights for weight in found)
    used = sum(weight.n_weights * (widths[weight.path] + 0.5) for weight in found)
    assert average - 0.3 < used / total <= average + 1e-9


@pytest.mark.parametrize("name", ["auto", "auto:", "auto:1", "auto:nan", "auto:9", "auto:four"])
def test_auto_without_a_possible_average_is_refused(tmp_path, name):
    """An unreachable average must be refused."""
    source = target_folder(tmp_path / "source")
    with pytest.raises(BadRequest, match=r"for example auto:4\.5"):
        run(source, tmp_path / "out", recipe=name)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_auto_has_the_requested_size_and_diverges_less_than_uniform(tmp_path, family):
    """The measured recipe must diverge less than uniform bits."""
    source = target_folder(tmp_path / "source", family)
    weights = weights_of(source)
    for name, array in weights.items():
        if "mlp" in name:
            # zeros and one other value are exact at the least width
            weights[name] = (array > 0).astype(array.dtype) * 0.1
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    mixed = run(source, tmp_path / "mixed", recipe="auto:4.5", verify=True)
    uniform = run(source, tmp_path / "uniform", bits=4, verify=True)
    assert mixed.jobs[0].plan.bits_per_weight < uniform.jobs[0].plan.bits_per_weight + 0.05
    assert mixed.checks[0].divergence.mean_kl < uniform.checks[0].divergence.mean_kl
    again = run(source, tmp_path / "again", recipe="auto:4.5")
    assert again.jobs[0].plan.fingerprint() == mixed.jobs[0].plan.fingerprint()


def test_auto_needs_a_tokenizer(tmp_path):
    """Without a tokenizer there is no text to measure on."""
    source = target_folder(tmp_path / "source")
    for path in source.glob("*token*"):
        path.unlink()
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        run(source, tmp_path / "out", recipe="auto:4.5")
