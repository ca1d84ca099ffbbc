"""Tiny random targets, the drafts that test them, and plain decoding to compare with.

Targets are mlx-lm models of a few layers over a byte vocabulary, float32, the same weights at
every run. Of the four drafts three know the right continuation: an oracle proposes it, a zero
draft never does, a scripted one as often as told. The random one is a real DraftModel, which is
almost never right and proves little about rollback.
"""

import importlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step

from dflash_mlx.cache import ContextCache, PairCache
from dflash_mlx.config import CacheConfig, SamplingConfig
from dflash_mlx.decode.accept import AcceptRule, request_rule
from dflash_mlx.decode.loop import DecodeConfig, State, StopDecision, decode
from dflash_mlx.decode.policy import BlockPolicy, FixedBlock
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.decode.round import Round
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.models.draft.build import bind, draft_model
from dflash_mlx.models.draft.config import ConvolutionConfig, DraftConfig, SelectorConfig
from dflash_mlx.models.draft.dflash import BoundDraft
from dflash_mlx.models.pair import Pair
from dflash_mlx.models.protocols import Block
from dflash_mlx.models.targets.decoder import DecoderTarget
from dflash_mlx.models.targets.families import family_of
from tests.tiny_configs import CONFIGS, END, MARK, MASK

PROMPT = tuple(b"Why is the sky blue at noon and red at dusk?")


def tiny_model(family: str = "qwen3", **changes: Any) -> nn.Module:
    """Return mlx-lm's model of a family with random weights, those of `CONFIGS[family]`."""
    config = {**CONFIGS[family], **changes}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(7)  # some modules draw their first values from the global generator
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    _randomise(model)
    model.eval()
    return model


def tiny_target(family: str = "qwen3", **changes: Any) -> DecoderTarget:
    """Return our walk over `tiny_model`."""
    return family_of(CONFIGS[family]["model_type"], family)(tiny_model(family, **changes))


def write_target(folder: Path, family: str = "qwen3", **changes: Any) -> Path:
    """Write `tiny_model` as a model folder without a tokenizer; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[family], **changes, "eos_token_id": END}
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(tiny_model(family, **changes).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


def _randomise(model: nn.Module, seed: int = 7) -> None:
    """Give matrices values of order one per output, and jitter the vectors as they are."""
    keys = mx.random.split(mx.random.key(seed), 4096)
    for index, (name, array) in enumerate(tree_flatten(model.parameters())):
        if not mx.issubdtype(array.dtype, mx.floating):
            continue
        noise = mx.random.normal(array.shape, key=keys[index])
        if array.ndim >= 2 and "conv" not in name:
            value = noise * (1.5 / array.shape[-1] ** 0.5)
        else:
            value = array.astype(mx.float32) + 0.25 * noise
        model.update(tree_unflatten([(name, value)]))
    mx.eval(model.parameters())


class ScriptedDraft:
    """Proposes `tokens` (prompt and answer) where told, and a wrong token behind that.

    `script` gives the number of draft tokens that are right in each round; its last value
    holds for all later rounds. What `extend` was given is in `seen`, to be compared.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        script: Iterable[int],
        target_layer_ids: tuple[int, ...] = (0,),
        block_size: int = 8,
        vocab_size: int = CONFIGS["qwen3"]["vocab_size"],
    ) -> None:
        self.target_layer_ids = target_layer_ids
        self.block_size = block_size
        self.row_bytes = 0
        self.seen: list[mx.array] = []
        self._tokens = list(tokens)
        self._script = _held(script)
        self._vocab_size = vocab_size

    def make_context(self) -> ContextCache:
        return ContextCache([])

    def with_sampling(self, temperature: float, seed: int) -> "ScriptedDraft":
        return self

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        assert position >= context.length, "features came twice"
        self.seen.append(features)
        context.length = position + features.shape[1]

    def propose(self, anchor: int, n_rows: int, context: ContextCache) -> Block:
        at = context.length
        assert self._tokens[at] == anchor, f"the anchor at {at} is not the expected token"
        right = self._tokens[at + 1 : at + n_rows]
        right += [0] * (n_rows - 1 - len(right))
        n_right = next(self._script)
        tokens = [
            token if index < n_right else (token + 1) % self._vocab_size
            for index, token in enumerate(right)
        ]
        return Block(mx.array([tokens], dtype=mx.int32), mx.array(True))


def oracle_draft(tokens: Sequence[int], **options: Any) -> ScriptedDraft:
    """Return a draft that is always right as far as `tokens` go."""
    return ScriptedDraft(tokens, [10**6], **options)


def zero_draft(tokens: Sequence[int], **options: Any) -> ScriptedDraft:
    """Return a draft that is always wrong."""
    return ScriptedDraft(tokens, [0], **options)


def _held(script: Iterable[int]) -> Iterator[int]:
    value = 0
    for value in script:
        yield value
    yield from itertools.repeat(value)


def draft_config(target: DecoderTarget, **changes: Any) -> DraftConfig:
    """Return the configuration of a two-layer draft for `target`: one sliding, one full layer."""
    shape = target.shape
    values: dict[str, Any] = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "block_size": 8,
        "mask_token_id": MASK,
        "target_layer_ids": (0, shape.n_layers - 1),
        "num_target_layers": shape.n_layers,
        "layer_types": ("sliding_attention", "full_attention"),
        "in_block_causal": (True, False),
        "sliding_window": 16,
    }
    return DraftConfig(**{**values, **changes})


def random_draft(target: DecoderTarget, **changes: Any) -> BoundDraft:
    """Return a real draft with random weights, bound to `target`."""
    model = draft_model(draft_config(target, **changes), ())
    _randomise(model, seed=11)
    return bind(model, target)


def selecting_draft(target: DecoderTarget, **changes: Any) -> BoundDraft:
    """Return a DFlash 2 draft with random weights, bound to `target`."""
    second = {"convolution": ConvolutionConfig(2, 8), "selector": SelectorConfig(8, 6)}
    model = draft_model(draft_config(target, **{**second, **changes}), ())
    _randomise(model, seed=11)
    return bind(model, target)


def plain(
    model: nn.Module, prompt: Sequence[int], n_tokens: int, n_rows: int = 2048, **options: Any
) -> list[int]:
    """Return `n_tokens` decoded by mlx-lm alone, the prompt read `n_rows` at a time."""
    steps = generate_step(
        mx.array(prompt), model, max_tokens=n_tokens, prefill_step_size=n_rows, **options
    )
    return [int(token) for token, _ in steps]


class Rows:
    """A block policy that takes the rows of its rounds from a list, again and again."""

    disabled_reason: str | None = None

    def __init__(self, *rows: int) -> None:
        self._rows = itertools.cycle(rows)

    def rows(self, context: int = 0) -> int:
        return next(self._rows)

    def next_step_is_plain(self) -> bool:
        return False

    def timed(self) -> bool:
        return False

    def drafts_ahead(self) -> bool:
        return False

    def observe(self, done: Round) -> None:
        pass


def read_prompt(
    pair: Pair, prompt: Sequence[int] = PROMPT, n_rows: int = 2048
) -> tuple[PairCache, State]:
    """Return a cache that holds the prompt, and the state to decode from."""
    cache = pair.make_cache()
    state = prefill(pair, cache, prompt, n_rows, lambda done, total: True)
    assert state is not None
    return cache, state


def never(tokens: Sequence[int]) -> StopDecision:
    """Let every token stand."""
    return StopDecision(len(tokens), False)


def rounds(
    pair: Pair,
    cache: PairCache,
    state: State,
    limit: int,
    policy: BlockPolicy | None = None,
    rule: AcceptRule | None = None,
    ending: Callable[[Sequence[int]], StopDecision] = never,
) -> Iterator[tuple[Round, State]]:
    """Decode greedily up to `limit` tokens of the answer, a full block a round."""
    block_size = pair.draft.block_size if pair.draft else 1
    policy = policy or FixedBlock(block_size)
    rule = rule or request_rule(SamplingConfig(), 0)
    return decode(pair, cache, state, DecodeConfig(policy, rule, ending, limit))


def answer(
    pair: Pair, n_tokens: int, prompt: Sequence[int] = PROMPT, n_rows: int = 2048, **options: Any
) -> list[int]:
    """Return `n_tokens` that the loop writes behind `prompt`."""
    cache, state = read_prompt(pair, prompt, n_rows)
    written: list[int] = []
    for done, _ in rounds(pair, cache, state, n_tokens, **options):
        written += done.tokens
    return written


class ByteTokenizer:
    """Bytes as tokens, an end token, a special `<mark>`, and a template of one tag per message."""

    eos_token_ids = frozenset({END})
    has_template = True
    has_thinking = False
    thinking_marks = None

    def opens_thought(self, ids: Sequence[int]) -> bool:
        return False

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        return frozenset({MARK} if "<mark>" in texts else ())

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def render(self, messages: Sequence[Any], thinking: bool | None) -> list[int]:
        said = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return self.encode(said + "<assistant>")


def loaded_pair(pair: Pair, **changes: Any) -> LoadedPair:
    """Return `pair` as the engine loads one, with the byte tokenizer, sampling greedily."""
    values: dict[str, Any] = {
        "pair": pair,
        "tokenizer": ByteTokenizer(),
        "sampling": SamplingConfig(),
        "compute": compute_here(),
        "cache_config": CacheConfig(),
        "model_name": "tiny",
        "draft_name": "tiny-draft" if pair.draft else None,
        "blas": "bundled",
        "quantized": False,
    }
    return LoadedPair(**{**values, **changes})
