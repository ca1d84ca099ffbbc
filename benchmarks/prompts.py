"""Renders the benchmark prompts of the package. It must not import MLX: BLAS is chosen later."""

from collections.abc import Iterator, Sequence

from dflash_mlx.bench.suites import KINDS, bundled


def prompt_ids(loaded, kinds: Sequence[str] = KINDS, count: int = 1) -> Iterator:
    """Yield the kind and the tokens of the first `count` prompts of each kind."""
    for prompt in bundled(kinds, count):
        messages = [{"role": "user", "content": prompt.text}]
        yield prompt.kind, loaded.tokenizer.render(messages, None)
