"""What a request runs with: its configuration and the pair's defaults, resolved once.

`GenerationConfig` is read here only. It must not know prompts as tokens, or caches.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_mlx.config import GenerationConfig, LogitsProcessor, SamplingConfig
from dflash_mlx.controller.text_policy import MAX_BLOCK_SIZE
from dflash_mlx.decode.policy import BlockPolicy, FixedBlock
from dflash_mlx.engine.loaded import LoadedPair, Prompt
from dflash_mlx.engine.messages import tool_schemas
from dflash_mlx.errors import BadRequest
from dflash_mlx.system.foreign import quoted

_UNMEASURED_QUANTIZED_BLOCK = 5
"""Block size for a quantized target on Metal without measured costs: the recommendation of the
official DFlash package."""


ToolChoice = str | Mapping[str, Any]
"""As in OpenAI's API. "auto" and "none" are supported; others are refused by name."""


@dataclass(frozen=True)
class ResolvedRequest:
    """Every decision about one request.

    Args:
        max_tokens: limit on the answer's tokens, end token excluded.
        stop: texts that end the answer; they are not part of it.
        stop_tokens: the `stop` texts that are tokens, by token.
        end_token_ids: tokens that end the answer: the model's, and `stop` texts that are tokens.
        block_size: tokens verified per round, anchor included; the largest one if `adaptive`.
        adaptive: whether the size of every round is chosen from measurements.
        copies: whether draft tokens are also copied from the context.
        prediction: a predicted answer, whose tokens are proposed as draft tokens.
        new_policy: makes the block policy. It is called when the request starts, because the
            requests before it may still change the measured costs.
        chat_template: whether the prompt is rendered with the model's chat template.
        thinking: thinking mode; None if the template has no such switch.
        template_variables: further variables of the chat template.
        sampling: how a token is chosen.
        seed: seed of the random numbers; drawn if `sampling` has none.
        tools: JSON schemas of the tools offered; empty if tools are off.
        logits_processors: the caller's processors, applied after those of `sampling`.
        notices: lines that the user should see.
    """

    max_tokens: int
    stop: tuple[str, ...]
    stop_tokens: Mapping[int, str]
    end_token_ids: frozenset[int]
    block_size: int
    adaptive: bool
    copies: bool
    prediction: str | None
    new_policy: Callable[[], BlockPolicy]
    chat_template: bool
    thinking: bool | None
    template_variables: Mapping[str, Any]
    sampling: SamplingConfig
    seed: int
    tools: tuple[dict[str, Any], ...]
    logits_processors: tuple[LogitsProcessor, ...]
    notices: tuple[str, ...]


def resolve_request(
    loaded: LoadedPair,
    config: GenerationConfig | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: ToolChoice = "auto",
) -> ResolvedRequest:
    """Return what a request with `config` to this pair runs with.

    Args:
        loaded: the pair.
        config: options of the request.
        tools: tools offered to the model, as OpenAI's API has them.
        tool_choice: "auto" or "none".

    Raises:
        BadRequest: an option that this pair does not support.
    """
    config = config or GenerationConfig()
    sampling = config.sampling or loaded.sampling
    copies = _copies(loaded, config)
    text = copies or config.prediction is not None
    _check_block_size(loaded, config.block_size, text)
    _check_logit_bias(loaded, sampling)
    thinking = _thinking(loaded, config)
    block_size, tuning = _block_size(loaded, config.block_size), loaded.tuning
    new_policy: Callable[[], BlockPolicy]
    if tuning is None:
        new_policy = lambda: FixedBlock(block_size)  # noqa: E731
    elif config.block_size is None:
        new_policy = tuning.policy
    else:
        new_policy = lambda: FixedBlock(block_size, tuning.early_draft_trial(block_size))  # noqa: E731
    tokenizer = loaded.tokenizer
    stop_tokens = {token: text for text in config.stop for token in tokenizer.special_ids((text,))}
    return ResolvedRequest(
        max_tokens=config.max_tokens,
        stop=config.stop,
        stop_tokens=stop_tokens,
        end_token_ids=tokenizer.eos_token_ids | stop_tokens.keys(),
        block_size=config.block_size or (max(block_size, MAX_BLOCK_SIZE) if text else block_size),
        adaptive=(text or tuning is not None) and config.block_size is None,
        copies=copies,
        prediction=config.prediction,
        new_policy=new_policy,
        chat_template=config.chat_template,
        thinking=thinking,
        template_variables=_template_variables(loaded, config),
        sampling=sampling,
        seed=secrets.randbelow(2**32) if sampling.seed is None else sampling.seed,
        tools=_tools(loaded, config, tools, tool_choice),
        logits_processors=config.logits_processors,
        notices=_notices(loaded, thinking),
    )


def check_prompt(prompt: Prompt) -> None:
    """Raise BadRequest if `prompt` is empty or is not valid Unicode."""
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise BadRequest("the prompt is empty; give it some text")
    if isinstance(prompt, str) and any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise BadRequest("the prompt contains half a character; decode it as UTF-8 text first")


def _block_size(loaded: LoadedPair, asked: int | None) -> int:
    """Return the block size of the draft model; the largest one if it is chosen every round."""
    draft = loaded.pair.draft
    if draft is None:
        return 1
    if asked is not None:
        return asked
    if loaded.tuning is not None:
        return loaded.tuning.costs.max_block_size
    if loaded.quantized and not loaded.compute.dense:
        return min(_UNMEASURED_QUANTIZED_BLOCK, draft.block_size)
    return draft.block_size


def _copies(loaded: LoadedPair, config: GenerationConfig) -> bool:
    """Return whether draft tokens are copied from the context."""
    speculates = config.block_size != 1
    if not speculates and (config.copies or config.prediction is not None):
        option = "copies" if config.copies else "prediction"
        raise BadRequest(f"block_size is 1, which disables {option}; leave one of them out")
    return speculates and (loaded.copies if config.copies is None else config.copies)


def _check_block_size(loaded: LoadedPair, asked: int | None, text: bool) -> None:
    draft = loaded.pair.draft
    if asked is None or (text and draft is None):
        return
    if asked > 1 and draft is None:
        raise BadRequest(
            f"block_size is {asked} and there is no draft; use block_size 1, or load a draft"
        )
    if draft is not None and asked > draft.block_size:
        raise BadRequest(
            f"block_size is {asked}; this draft was trained for blocks of {draft.block_size}, "
            f"so it needs 1 to {draft.block_size}"
        )


def _check_logit_bias(loaded: LoadedPair, sampling: SamplingConfig) -> None:
    vocab = loaded.pair.target.shape.vocab_size
    if unknown := [token for token in sampling.logit_bias if token >= vocab]:
        raise BadRequest(f"logit_bias names token {unknown[0]}; this model has {vocab} tokens")


def _thinking(loaded: LoadedPair, config: GenerationConfig) -> bool | None:
    """Return the thinking mode: the request's, else the draft's, else the usual default."""
    tokenizer = loaded.tokenizer
    if not config.chat_template:
        return None
    if tokenizer.has_thinking:
        asked = loaded.trained_thinking if config.thinking is None else config.thinking
        # mlx-lm turns `enable_thinking` on; `thinking` is off in templates that have it
        return tokenizer.thinking_switch == "enable_thinking" if asked is None else asked
    thinks = tokenizer.thinks_without_switch
    if config.thinking is None or config.thinking is thinks:
        return None
    if thinks is False:
        raise BadRequest("this model has no thinking mode; leave thinking off")
    effort = "; use reasoning_effort" if tokenizer.has_reasoning_effort else ""
    raise BadRequest(
        f"thinking is {config.thinking}, and this model's chat template has no switch for it; "
        f"leave thinking out{effort}"
    )


def _tools(
    loaded: LoadedPair,
    config: GenerationConfig,
    tools: Sequence[Mapping[str, Any]] | None,
    choice: ToolChoice,
) -> tuple[dict[str, Any], ...]:
    """Return the tools to offer, checked."""
    if choice not in ("auto", "none"):
        raise BadRequest(
            f"tool_choice is {quoted(choice)}; a call cannot be enforced, so it needs auto or none"
        )
    checked = tool_schemas(tools or ())
    if not checked or choice == "none":
        return ()
    if not config.chat_template:
        raise BadRequest("tools need the chat template; leave one of them out")
    if loaded.tokenizer.answer_format.tool_format is None or not loaded.tokenizer.offers_tools:
        raise BadRequest(
            "tools are given, and this model's chat template does not render tools in a format "
            "that can be parsed; use a model that was trained to call tools"
        )
    return checked


def _template_variables(loaded: LoadedPair, config: GenerationConfig) -> dict[str, Any]:
    """Return the variables for the chat template that the request names."""
    tokenizer = loaded.tokenizer
    variables = dict(config.chat_template_kwargs)
    if (variables or config.reasoning_effort) and not config.chat_template:
        raise BadRequest(
            "chat_template_kwargs and reasoning_effort need the chat template; leave them out"
        )
    known = tokenizer.template_variables
    if unknown := sorted(name for name in variables if known is not None and name not in known):
        raise BadRequest(
            f"chat_template_kwargs has {quoted(unknown[0])}, which this model's chat template does "
            f"not read; it reads {', '.join(sorted(known or ()))}"
        )
    if config.reasoning_effort is not None:
        if not tokenizer.has_reasoning_effort:
            raise BadRequest(
                f"reasoning_effort is {config.reasoning_effort}, and this model's chat template "
                "does not read it; leave it out"
            )
        variables["reasoning_effort"] = config.reasoning_effort
    return variables


def _notices(loaded: LoadedPair, thinking: bool | None) -> tuple[str, ...]:
    notices = [loaded.no_draft] if loaded.no_draft else []
    trained = loaded.trained_thinking if loaded.pair.draft else None
    if None not in (trained, thinking) and thinking != trained:
        mode = "on" if trained else "off"
        notices.append(f"this draft was trained with thinking {mode}; acceptance may be about half")
    return tuple(notices)
