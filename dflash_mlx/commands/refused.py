"""Options that users know from other programs and that mean nothing here: what to do instead."""

_LENGTH = "the length of an answer is --max-tokens"
_DRAFT = "the draft is --draft, and auto takes the one that belongs to the model"
_BLOCK = "tokens verified per round, anchor included, are --block-size"
_KV = "both caches keep the model's own precision, which exactness needs; leave it out"
_CONTEXT = "the context is the model's own and grows as it is used; leave it out"
_CODE = "code from a repository is never run; take a build in an architecture that mlx-lm knows"
_TEMPLATE = "the model's own chat template is used, or none with --no-chat-template"
_XTC = "it samples from another distribution than the model's filters give; leave it out"
_ADAPTER = "fuse the adapter into the model first (mlx_lm.fuse), then give that folder as --model"
_CACHE = "a conversation's rows are kept while chat runs; leave it out"
_METAL = "all layers run on the one device of this machine; leave it out"

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
    "--chat-template-config": "a thinking mode is --thinking or --no-thinking",
    "--ignore-chat-template": _TEMPLATE,
    "--use-default-chat-template": _TEMPLATE,
    "--extra-eos-token": "a text that ends the answer is --stop",
    "--reverse-prompt": "a text that ends the answer is --stop",
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
    "--temp": "it is spelled --temperature",
    "--system-prompt": "it is spelled --system",
    "--prompt": "the prompt is the argument itself: dflash-mlx generate 'Why is the sky blue?'",
    "--repeat-penalty": "it is spelled --repetition-penalty",
    "--n-gpu-layers": _METAL,
    "--gpu-layers": _METAL,
    "--threads": _METAL,
    "--device": _METAL,
}


def remedy(option: str) -> str | None:
    """Return what to do instead of `option`, None where we have not heard of it either."""
    return _REMEDIES.get(option.partition("=")[0])
