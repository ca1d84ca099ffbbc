"""Targets from folders: the index decides, spellings mean the same model, odd files are refused."""

import json
import tempfile

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from dflash_mlx.errors import BadCheckpoint, BadRequest, DFlashError
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.target import load_target
from dflash_mlx.models.pair import Pair
from dflash_mlx.pairs.model_files import INDEX
from tests.gguf.writer import write_tiny
from tests.tiny import answer, random_draft, write_target
from tests.tiny_configs import CONFIGS, PUBLISHED
from tests.train.tiny_folder import tiny_folder


def text_of(folder):
    return answer(Pair(load_target(folder, compute_here()).target), 24)


def rewrite(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    file.write_text(json.dumps(config))


def in_shards(folder, weights, stray=None):
    """Write `weights` as two shards with an index, and zeros under the name `stray`."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = sorted(weights)
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    for file in set(where.values()):
        part = {name: weights[name] for name in names if where[name] == file}
        mx.save_safetensors(str(folder / file), part)
    if stray:
        mx.save_safetensors(str(folder / stray), {name: weights[name] * 0 for name in names})
    return folder


STRAYS = [
    "model.safetensors",
    "model-old.safetensors",
    "model-00000-of-00001.safetensors",
    "consolidated.safetensors",
]


@pytest.mark.parametrize("stray", STRAYS)
def test_files_that_the_index_does_not_name_are_ignored(tmp_path, target, stray):
    """A file of an earlier download replaced the weights, and no message said so."""
    folder = tiny_folder(tmp_path / "target")
    want = text_of(folder)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    assert text_of(in_shards(folder, weights, stray)) == want
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(PUBLISHED))
    weights = dict(tree_flatten(random_draft(target).model.parameters()))
    in_shards(draft, weights, stray)
    loaded = load_draft(draft, target, compute_here())
    assert mx.array_equal(loaded.model.fc.weight, weights["fc.weight"])


@pytest.mark.parametrize("stray", [*STRAYS[1:], "adapters.safetensors"])
def test_a_single_file_needs_no_index(tmp_path, stray):
    """Other safetensors files beside model.safetensors belong to other models."""
    folder = tiny_folder(tmp_path / "target")
    want = text_of(folder)
    mx.save_safetensors(str(folder / stray), {"model.norm.weight": mx.zeros((32,))})
    assert text_of(folder) == want


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_rope_parameters_give_the_text_of_rope_theta(tmp_path, family):
    """transformers 5 writes the first; mlx-lm dropped it and wrote another text."""
    folder = tiny_folder(tmp_path / "target", family, rope_theta=500.0)
    want = text_of(folder)
    rewrite(folder, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert text_of(folder) == want


def test_yarn_extends_the_context_of_a_loaded_target(tmp_path):
    """A model with YaRN refused prompts longer than the original context."""
    folder = tiny_folder(tmp_path / "target")
    rewrite(folder, max_position_embeddings=64, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert load_target(folder, compute_here()).target.shape.context_length == 256


def test_a_head_in_the_file_is_used_where_no_key_ties_it(tmp_path):
    """mlx-lm ties by default, transformers does not: the head was dropped silently."""
    folder = tiny_folder(tmp_path / "target", "llama", tie_word_embeddings=False)
    want = text_of(folder)
    rewrite(folder, tie_word_embeddings=None)
    assert text_of(folder) == want


def test_names_of_missing_and_superfluous_tensors_are_given(tmp_path):
    """The message ended after "Missing 16 parameters:"."""
    folder = tiny_folder(tmp_path / "target")
    file = str(folder / "model.safetensors")
    weights = dict(mx.load(file))
    mx.save_safetensors(file, {**weights, "model.extra": mx.zeros((3,))})
    with pytest.raises(BadCheckpoint, match=r"model\.extra"):
        load_target(folder, compute_here())
    del weights["model.norm.weight"]
    mx.save_safetensors(file, weights)
    with pytest.raises(BadCheckpoint, match=r"model\.norm\.weight"):
        load_target(folder, compute_here())


def test_more_layers_than_tensors_are_refused_before_they_are_built(tmp_path):
    """A billion layers filled the memory."""
    folder = tiny_folder(tmp_path / "target")
    rewrite(folder, num_hidden_layers=9000)
    with pytest.raises(BadCheckpoint, match="9000 layers"):
        load_target(folder, compute_here())
    rewrite(folder, num_hidden_layers=10**9)
    with pytest.raises(BadCheckpoint, match="num_hidden_layers is 1000000000"):
        load_target(folder, compute_here())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"num_attention_heads": 10**6}),
        ("qwen3_moe", {"num_experts_per_tok": "x"}),
        ("gpt_oss", {"sliding_window": "x"}),
        ("deepseek_v3", {"topk_method": "x"}),
        ("qwen3", {"tie_word_embeddings": "x"}),
        ("qwen3", {"rms_norm_eps": "x"}),
        ("llama", {"quantization": "x"}),
        ("llama", {"rms_norm_eps": float("nan")}),
        ("qwen3", {"head_dim": float("inf")}),
        ("llama", {"architectures": 5}),
    ],
)
def test_a_value_of_the_wrong_type_is_one_line(tmp_path, family, changes):
    """mlx-lm raised AttributeError, AssertionError, TypeError and others."""
    folder = tiny_folder(tmp_path / "target", family)
    rewrite(folder, **changes)
    with pytest.raises(DFlashError) as caught:
        load_target(folder, compute_here())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "llama"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path, family):
    """transformers made up an empty tokenizer for some families, and the prompt was lost."""
    folder = write_target(tmp_path / "target", family)
    with pytest.raises(BadCheckpoint, match="has no tokenizer"):
        load_target(folder, compute_here())
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match="has no tokenizer"):
        load_target(folder, compute_here())


def test_a_missing_temporary_folder_is_one_line(tmp_path, monkeypatch):
    """mlx-lm reads the model from a temporary folder; its absence gave a traceback."""
    folder = tiny_folder(tmp_path / "target")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(BadRequest, match="set TMPDIR"):
        load_target(folder, compute_here())


def test_a_gguf_suffix_in_capitals_is_accepted(tmp_path):
    """`M.GGUF` was refused as a file that is not a .gguf file."""
    file = write_tiny(tmp_path / "M.GGUF")
    assert load_target(file, compute_here()).target.shape.context_length == 128


def test_every_family_loads_from_a_folder(tmp_path):
    """A check of keys that refuses a published spelling refuses the family."""
    for name in CONFIGS:
        folder = tiny_folder(tmp_path / name, name)
        assert load_target(folder, compute_here()).target.shape.context_length >= 256
