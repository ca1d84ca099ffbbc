"""Options of other programs that this one refuses, each with what to use instead.

It must not know which options exist here; a test checks that no option is in both lists.
"""

_LENGTH = "the maximum number of new tokens is --max-tokens"
_DRAFT = "the draft is --draft; auto selects the known draft of the target"
_BLOCK = "the tokens verified per round, including the anchor, are --block-size"
_KV = "KV caches stay in the model's precision, because lossless decoding needs it; omit it"
_CONTEXT = "caches grow up to the model's context length; omit it"
_CODE = "code from a repository is never run; use a build in an architecture that mlx-lm knows"
_TEMPLATE = "the model's own chat template is used; --no-chat-template disables it"
_XTC = "it changes the target's distribution beyond the supported filters; omit it"
_ADAPTER = "fuse the adapter into the model (mlx_lm.fuse) and give that folder as --model"
_CACHE = "chat keeps the KV cache between turns; omit it"
_DEVICE = "all layers run on the one device of this machine; omit it"
_STOP = "a text that ends the answer is --stop"

_REMEDIES = {
    "--kv-bits": _KV,
    "--kv-group-size": _KV,
    "--quantized-kv-start": _KV,
    "--cache-type-k": _KV,
    "--cache-type-v": _KV,
    "--max-kv-size": _CONTEXT,
    "--ctx-size": _CONTEXT,
    "--context-length": _CONTEXT,
    "--trust-remote-code": _CODE,
    "--adapter-path": _ADAPTER,
    "--lora": _ADAPTER,
    "--prompt-cache-file": _CACHE,
    "--xtc-probability": _XTC,
    "--xtc-threshold": _XTC,
    "--min-tokens-to-keep": _XTC,
    "--chat-template": _TEMPLATE,
    "--chat-template-config": "thinking mode is --thinking or --no-thinking",
    "--ignore-chat-template": _TEMPLATE,
    "--use-default-chat-template": _TEMPLATE,
    "--extra-eos-token": _STOP,
    "--reverse-prompt": _STOP,
    "--draft-model": _DRAFT,
    "--model-draft": _DRAFT,
    "--no-draft": "plain decoding is --draft none",
    "--num-draft-tokens": _BLOCK,
    "--draft-max": _BLOCK,
    "--block": _BLOCK,
    "--block-tokens": _BLOCK,
    "--max-new-tokens": _LENGTH,
    "--n-predict": _LENGTH,
    "--num-predict": _LENGTH,
    "--temp": "the name here is --temperature",
    "--system-prompt": "the name here is --system",
    "--prompt": "the prompt is a positional argument: dflash-mlx generate 'Why is the sky blue?'",
    "--repeat-penalty": "the name here is --repetition-penalty",
    "--n-gpu-layers": _DEVICE,
    "--gpu-layers": _DEVICE,
    "--threads": _DEVICE,
    "--device": _DEVICE,
}


def remedy(option: str) -> str | None:
    """Return what to use instead of `option`, or None for an option that is not listed."""
    return _REMEDIES.get(option.partition("=")[0])
