"""Entry points of models: configurations, weights, GGUF, generation defaults, tokenizers."""

import functools
import json
from pathlib import Path
from random import Random

import mlx.core as mx
import safetensors
from mlx.utils import tree_flatten

from dflash_mlx.errors import DFlashError, UnsupportedModel
from dflash_mlx.loading.compute import Compute
from dflash_mlx.loading.draft import load_draft
from dflash_mlx.loading.generation import FILE as GENERATION
from dflash_mlx.loading.generation import generation_defaults
from dflash_mlx.loading.safetensors import read_checkpoint, read_header
from dflash_mlx.loading.target import load_target
from dflash_mlx.loading.tokenizer import Tokenizer
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.pairs.model_files import INDEX
from tests.fuzz.harness import EntryPoint
from tests.fuzz.mutators import json_text, mutated_bytes, mutated_json, mutated_safetensors
from tests.gguf.writer import as_gguf, gguf_bytes, tiny_metadata, tiny_tensors, write_tiny
from tests.tiny import draft_config, random_draft, selecting_draft, tiny_target
from tests.tiny_configs import PUBLISHED
from tests.train.tiny_folder import tiny_folder

STORED = Compute("cpu", dense=False, dtype=None)
FAMILIES = (
    *(
        "llama3",
        "llama_windowed",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_5",
        "qwen3_next",
        "gpt_oss",
    ),
    *("gemma3", "gemma4", "gemma4_small", "muse_glimmer", "laguna", "glm4_moe", "minimax"),
    *("deepseek_v3", "kimi_k25", "glm_moe_dsa", "longcat_flash", "lfm2"),
)
DFLASH2 = {
    **PUBLISHED,
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        **PUBLISHED["dflash_config"],
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 8,
        "selector_top_k": 6,
    },
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes"}] * 2


def mutate_json(dice: Random, file: Path) -> None:
    """Replace a JSON file by a mutated one."""
    file.write_bytes(json_text(dice, json.loads(file.read_text())))


def write_targets(folder: Path) -> None:
    for family in FAMILIES:
        tiny_folder(folder / family, family)


def run_target(folder: Path) -> None:
    target = load_target(folder, STORED).target
    run_tokens(target)


def run_tokens(target: DecoderTarget) -> None:
    """Run tokens in two pieces, as a prompt and an answer."""
    caches = target.make_caches()
    for n_rows in (5, 1):
        output = target.forward(mx.ones((1, n_rows), mx.int32), caches, (0,))
        mx.eval(target.logits(output.hidden), output.features)
        for cache in caches:
            cache.commit(n_rows)


def mutate_target_config(dice: Random, folder: Path) -> None:
    mutate_json(dice, folder / "config.json")


def write_drafts(folder: Path) -> None:
    target = the_target()
    for name, draft, config in (
        ("first", random_draft(target), PUBLISHED),
        ("yarn", random_draft(target), {**PUBLISHED, "rope_scaling": YARN}),
        ("second", selecting_draft(target), DFLASH2),
    ):
        place = folder / name
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config))
        weights = dict(tree_flatten(draft.model.parameters()))
        mx.save_safetensors(str(place / "model.safetensors"), weights)


@functools.cache
def the_target() -> DecoderTarget:
    target = tiny_target("qwen3")
    assert draft_config(target)
    return target


def run_draft(folder: Path) -> None:
    draft = load_draft(folder, the_target(), STORED)
    context = draft.make_context()
    width = draft.model.config.feature_size
    draft.extend(mx.zeros((1, 5, width)), 0, context)
    block = draft.propose(65, min(draft.block_size, 16), context)
    mx.eval(block.tokens)


def write_weights(folder: Path) -> None:
    for name, dtype in (("float32", mx.float32), ("float16", mx.float16)):
        place = folder / name
        place.mkdir(parents=True)
        tensors = {
            "matrix": mx.ones((4, 8), dtype),
            "vector": mx.zeros((3,), dtype),
            "scalar": mx.array(1, dtype),
            "empty": mx.zeros((0, 4), dtype),
            "ids": mx.arange(6),
        }
        mx.save_safetensors(str(place / "model.safetensors"), tensors, {"format": "mlx"})


def mutate_weights(dice: Random, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(mutated_safetensors(dice, file.read_bytes()))


def run_header(folder: Path) -> None:
    """Compare with the reference library: what it refuses must not be accepted."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    try:
        reference = dict(safetensors.deserialize(data))
    except Exception as error:  # noqa: BLE001  the library raises its own type, and others
        reference = None
        refusal = str(error)
    entries = read_header(file)
    assert reference is not None, f"accepted, and the safetensors library says: {refusal}"
    assert entries.keys() == reference.keys()
    for name, entry in entries.items():
        assert list(entry.shape) == list(reference[name]["shape"])
        assert data[entry.offset : entry.offset + entry.n_bytes] == bytes(reference[name]["data"])


def run_header_or_agree(folder: Path) -> None:
    """As `run_header`; what the library accepts is refused only for its types or doubled names."""
    try:
        run_header(folder)
    except UnsupportedModel:
        raise
    except DFlashError as error:
        data = (folder / "model.safetensors").read_bytes()
        try:
            safetensors.deserialize(data)
        except Exception:  # noqa: BLE001  refused by both
            raise error from None
        if "twice" not in str(error):
            raise AssertionError("the safetensors library accepts this file") from error
        raise


def write_shards(folder: Path) -> None:
    place = folder / "shards"
    place.mkdir(parents=True)
    where = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        mx.save_safetensors(str(place / name), {f"tensor{number}": mx.ones((4,))})
        where[f"tensor{number}"] = name
    (place / INDEX).write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": where}))


def mutate_index(dice: Random, folder: Path) -> None:
    mutate_json(dice, folder / INDEX)


def write_ggufs(folder: Path) -> None:
    for family in ("llama", "qwen3"):
        for kind in ("F32", "Q8_0"):
            (folder / f"{family} {kind}").mkdir(parents=True)
            write_tiny(folder / f"{family} {kind}" / "m.gguf", family, kind)


def mutate_gguf(dice: Random, folder: Path) -> None:
    file = folder / "m.gguf"
    family, kind = dice.choice(("llama", "qwen3")), dice.choice(("F32", "Q4_1"))
    metadata = tiny_metadata(family)
    if dice.randrange(2):
        data = file.read_bytes()
        file.write_bytes(mutated_bytes(dice, data, data.index(b"output_norm.weight") + 2000))
        return
    changed = mutated_json(dice, metadata)
    for key in list(changed):
        if not _is_writable(changed[key]):
            changed[key] = dice.choice((5, -1.0, "x", True, ["x"], [1]))
    file.write_bytes(gguf_bytes(changed, as_gguf(tiny_tensors(family, kind), family)))


def _is_writable(value: object) -> bool:
    """Whether the tests' writer has a type for a metadata value."""
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return len(kinds) == 1 and all(_is_writable(item) for item in value) and list not in kinds
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value < 2**32
    if isinstance(value, str):
        return value.isascii()
    return isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1e38)


def run_gguf(folder: Path) -> None:
    loaded = load_target(folder / "m.gguf", STORED)
    run_tokens(loaded.target)
    run_text(loaded.tokenizer)


def write_generation(folder: Path) -> None:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / GENERATION).write_text(
        json.dumps(
            {
                "bos_token_id": 1,
                "do_sample": True,
                "eos_token_id": [256, 257],
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "min_p": 0.0,
                "repetition_penalty": 1.05,
                "transformers_version": "5.24.0",
            }
        )
    )


def mutate_generation(dice: Random, folder: Path) -> None:
    mutate_json(dice, folder / GENERATION)


def run_generation(folder: Path) -> None:
    generation_defaults(folder, {"eos_token_id": 3})


def write_tokenizers(folder: Path) -> None:
    tiny_folder(folder / "model")


def mutate_tokenizer(dice: Random, folder: Path) -> None:
    names = ["tokenizer.json", "tokenizer_config.json"]  # config.json is checked before
    if (folder / "special_tokens_map.json").exists():
        names.append("special_tokens_map.json")
    mutate_json(dice, folder / dice.choice(names))


def run_tokenizer(folder: Path) -> None:
    run_text(Tokenizer.read(folder, (256,)))


def run_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Größe, 日本 <end>")
    tokenizer.decode(ids[:50])
    if tokenizer.has_template:
        tokenizer.render(CHAT, None)


ENTRY_POINTS = (
    EntryPoint("config.json of a target", write_targets, mutate_target_config, run_target, 120),
    EntryPoint("config.json of a draft", write_drafts, mutate_target_config, run_draft, 200),
    EntryPoint("safetensors", write_weights, mutate_weights, run_header_or_agree, 1500),
    EntryPoint("safetensors index", write_shards, mutate_index, read_checkpoint, 300),
    EntryPoint("gguf", write_ggufs, mutate_gguf, run_gguf, 150),
    EntryPoint(GENERATION, write_generation, mutate_generation, run_generation, 500),
    EntryPoint("tokenizer files", write_tokenizers, mutate_tokenizer, run_tokenizer, 120),
)
