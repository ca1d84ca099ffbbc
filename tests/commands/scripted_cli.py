"""The command line with a scripted engine, for tests in a pseudo-terminal.

The engine answers with numbers, one per round. Worker thread, streams and command line are the
real ones. The model names `slow-load`, `slow-read` and `slow-write` make that phase take a minute.
"""

import sys
import threading
import time
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

from dflash_mlx.commands import main
from dflash_mlx.config import GenerationConfig, SamplingConfig
from dflash_mlx.engine.closable_queue import ClosableQueue
from dflash_mlx.engine.stream import Chunk, Stream
from dflash_mlx.engine.worker import Worker
from tests.commands.results import RESULT

MINUTE = 60


@dataclass
class Engine:
    """Replaces `dflash_mlx.Engine` and its sessions."""

    model: str
    worker: Worker

    @property
    def loaded(self):
        return SimpleNamespace(
            model_name=self.model,
            draft_name="scripted-draft",
            sampling=SamplingConfig(),
            compute=SimpleNamespace(device="metal"),
            blas="accelerate",
            kernels=None,
        )

    def resolve(self, config):
        return SimpleNamespace(
            sampling=config.sampling,
            block_size=8,
            adaptive=False,
            thinking=None,
            notices=(),
            copies=False,
        )

    def session(self, system=None):
        return self

    def stream(self, prompt: str, config: GenerationConfig) -> Stream:
        def start(feed: ClosableQueue[Chunk], cancelled: threading.Event) -> None:
            self.worker.submit(lambda: self._serve(prompt, config, feed, cancelled), cancelled)

        return Stream(start)

    def _serve(self, prompt, config, feed, cancelled):
        feed.put(Chunk(progress=(0, len(prompt))))
        if self.model == "slow-read":
            time.sleep(MINUTE)
        written = 0
        while written < config.max_tokens and not cancelled.is_set():
            feed.put(Chunk(text=f"{written} ", tokens=(written,)))
            written += 1
            time.sleep(0.05 if self.model == "slow-write" else 0)
        reason = "cancelled" if cancelled.is_set() else "length"
        result = replace(
            RESULT,
            text="".join(f"{number} " for number in range(written)),
            tokens=tuple(range(written)),
            generated_tokens=written,
            finish_reason=reason,
            prompt_tokens=len(prompt),
            cached_tokens=0,
        )
        feed.put(Chunk(result=result))
        feed.end()

    def close(self):
        self.worker.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@dataclass(frozen=True)
class LoadHooks:
    """Replaces `dflash_mlx.LoadHooks`."""

    on_step: object
    on_progress: object
    on_notice: object


def load(model, draft, hooks, kernels="auto", dtype="auto"):
    hooks.on_step(f"loading {model}")
    worker = Worker(model)
    if model == "slow-load":
        worker.run(lambda: time.sleep(MINUTE))
    return Engine(model, worker)


if __name__ == "__main__":
    stage = ModuleType("dflash_mlx.engine.load")
    stage.load, stage.LoadHooks = load, LoadHooks
    sys.modules["dflash_mlx.engine.load"] = stage
    sys.exit(main())
