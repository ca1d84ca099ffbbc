"""Conversations with states and windows: a later turn reads only new tokens."""

import pytest

from dflash_mlx.config import GenerationConfig
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.worker import Worker
from dflash_mlx.models.pair import Pair
from tests.tiny import ByteTokenizer, loaded_pair, plain, random_draft, tiny_target

SHORT = GenerationConfig(max_tokens=40)


class OpeningTokenizer(ByteTokenizer):
    """A template that starts answers with an empty thought, which finished answers lack."""

    def render(self, messages, thinking, **options):
        return [*super().render(messages, thinking, **options), *b"<think></think>"]


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3_text", "lfm2"])
def test_the_second_turn_reuses_the_rows_of_the_first_prompt(family):
    """Qwen3.5's template rewrites the start of an answer, and the whole chat was read again."""
    worker = Worker("test")

    def load():
        target = tiny_target(family)
        pair = Pair(target, random_draft(target))
        return loaded_pair(pair, tokenizer=OpeningTokenizer())

    with Engine(worker.run(load), worker) as engine:
        session = engine.session()
        session.generate("Tell me of the sky, at some length.", SHORT)
        shared = len("<user>Tell me of the sky, at some length.\n<assistant>")
        second = session.generate("Go on", SHORT)
        ids = engine.loaded.tokenizer.render(session.messages[:-1], None)
        model = engine.loaded.pair.target.model
        assert second.cached_tokens == shared
        assert list(second.tokens) == worker.run(lambda: plain(model, ids, 40))
