"""Tiny random targets, drafts to test them with, and mlx-lm's plain decoding as the reference.

Targets are mlx-lm models of a few layers over a byte vocabulary with fixed random float32 weights.
Three drafts know the expected text: `oracle_draft` is always right, `zero_draft` never, and
`ScriptedDraft` as often as its script says. `random_draft` is a real draft and almost never right.
"""

import importlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step

from dflash_mlx.cache import ContextCache, PairCache
from dflash_mlx.config import CacheConfig, SamplingConfig
from dflash_mlx.decode.accept import AcceptRule, VerifyOutput, match_rule
from dflash_mlx.decode.greedy import greedy_rounds, never_stop
from dflash_mlx.decode.history import History
from dflash_mlx.decode.loop import DecodeConfig, DecodeState, StopCondition, decode
from dflash_mlx.decode.policy import BlockPolicy, FixedBlock
from dflash_mlx.decode.prefill import prefill
from dflash_mlx.decode.round import Round
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.loading.answer_format import AnswerFormat
from dflash_mlx.loading.chat_template import ToolCallForm
from dflash_mlx.loading.compute import compute_here
from dflash_mlx.metal.head_merge import BestTokens
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
    """Return mlx-lm's model of `CONFIGS[family]` with fixed random weights."""
    config = {**CONFIGS[family], **changes}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(7)  # some modules draw their first values from the global generator
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    _randomise(model)
    model.eval()
    return model


def tiny_target(family: str = "qwen3", **changes: Any) -> DecoderTarget:
    """Return our target over `tiny_model`."""
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
    """Scale matrices so that outputs are of order one, and add noise to vectors."""
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
    """Proposes the right tokens of `tokens` (prompt and answer) as far as the script says.

    `script` gives the number of right draft tokens per round; its last value holds for all later
    rounds. The features given to `extend` are recorded in `extended`.
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
        self.extended: list[mx.array] = []
        self._tokens = list(tokens)
        self._script = _repeating_last(script)
        self._vocab_size = vocab_size

    def make_context(self) -> ContextCache:
        return ContextCache([])

    def with_sampling(self, temperature: float, seed: int) -> "ScriptedDraft":
        return self

    def extend(self, features: mx.array, position: int, context: ContextCache) -> None:
        assert position >= context.length, "these features are in the context already"
        self.extended.append(features)
        context.length = position + features.shape[1]

    def propose(self, anchor: int, block_size: int, context: ContextCache) -> Block:
        at = context.length
        assert self._tokens[at] == anchor, f"the anchor at {at} is not the expected token"
        right = self._tokens[at + 1 : at + block_size]
        right += [0] * (block_size - 1 - len(right))
        n_right = next(self._script)
        tokens = [
            token if index < n_right else (token + 1) % self._vocab_size
            for index, token in enumerate(right)
        ]
        return Block(mx.array([tokens], dtype=mx.int32), mx.array(True))


def oracle_draft(tokens: Sequence[int], **options: Any) -> ScriptedDraft:
    """Return a draft that is always right within `tokens`."""
    return ScriptedDraft(tokens, [10**6], **options)


def zero_draft(tokens: Sequence[int], **options: Any) -> ScriptedDraft:
    """Return a draft that is always wrong."""
    return ScriptedDraft(tokens, [0], **options)


def _repeating_last(script: Iterable[int]) -> Iterator[int]:
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
    model: nn.Module, prompt: Sequence[int], n_tokens: int, step_size: int = 2048, **options: Any
) -> list[int]:
    """Return `n_tokens` decoded by mlx-lm alone with `step_size` as its `prefill_step_size`."""
    steps = generate_step(
        mx.array(prompt), model, max_tokens=n_tokens, prefill_step_size=step_size, **options
    )
    return [int(token) for token, _ in steps]


class BlockSizes:
    """A block policy that cycles through the given block sizes."""

    disabled_reason: str | None = None
    disabled_for_request = False

    def __init__(self, *sizes: int) -> None:
        self._sizes = itertools.cycle(sizes)

    def next_block_size(self, context_length: int = 0) -> int:
        return next(self._sizes)

    def next_step_is_plain(self) -> bool:
        return False

    def times_draft(self) -> bool:
        return False

    def launches_next_draft_early(self) -> bool:
        return False

    def observe(self, finished: Round) -> None:
        pass


def read_prompt(
    pair: Pair, prompt: Sequence[int] = PROMPT, step_size: int = 2048
) -> tuple[PairCache, DecodeState]:
    """Return a cache that holds the prompt, and the state to decode from."""
    cache = pair.make_cache()
    for _ in prefill(pair, cache, prompt, step_size):
        pass
    return cache, DecodeState(History(prompt))


def verify_output(logits: mx.array, best: BestTokens | None = None) -> VerifyOutput:
    """Return the output of a verified block with `logits` [B, V] and no features."""
    return VerifyOutput(logits, mx.zeros((1, logits.shape[0], 0)), best)


def rounds(
    pair: Pair,
    cache: PairCache,
    state: DecodeState,
    max_tokens: int,
    policy: BlockPolicy | None = None,
    accept_rule: AcceptRule | None = None,
    stop_condition: StopCondition = never_stop,
) -> Iterator[tuple[Round, DecodeState]]:
    """Decode greedily from `state`; by default in blocks of the draft's size."""
    policy = policy or FixedBlock(pair.draft.block_size if pair.draft else 1)
    accept_rule = accept_rule or match_rule(SamplingConfig(), 0)
    return decode(pair, cache, state, DecodeConfig(policy, accept_rule, stop_condition, max_tokens))


def answer(pair: Pair, n_tokens: int, prompt: Sequence[int] = PROMPT, **options: Any) -> list[int]:
    """Return the `n_tokens` that our loop decodes after `prompt`; see `greedy_rounds`."""
    finished = greedy_rounds(pair, prompt, n_tokens, **options)
    return [token for one in finished for token in one.tokens]


class ByteTokenizer:
    """Maps bytes to tokens; has an end token, a special `<mark>` and a template of tags."""

    eos_token_ids = frozenset({END})
    has_template = True
    has_thinking = False
    thinking_switch = None
    thinks_without_switch = False
    thinking_marks = None
    has_reasoning_effort = False
    template_variables: frozenset[str] = frozenset()
    tool_call_form = ToolCallForm()
    offers_tools = False
    answer_format = AnswerFormat()

    def tail(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        return frozenset({MARK} if "<mark>" in texts else ())

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def render(self, messages: Sequence[Any], thinking: bool | None, **options: Any) -> list[int]:
        text = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        continued = options.get("continue_final")
        return self.encode(text.removesuffix("\n") if continued else text + "<assistant>")


def loaded_pair(pair: Pair, **changes: Any) -> LoadedPair:
    """Return `pair` as the engine loads it, with the byte tokenizer and greedy sampling."""
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
