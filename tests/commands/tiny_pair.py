"""A tiny random pair with the interface of `load`: real models and engine, no files."""

from dflash_mlx.config import CacheConfig, KernelPolicy
from dflash_mlx.engine.engine import Engine
from dflash_mlx.engine.load import LoadHooks
from dflash_mlx.engine.loaded import LoadedPair
from dflash_mlx.engine.worker import Worker
from dflash_mlx.errors import BadCheckpoint
from dflash_mlx.models.pair import Pair
from tests.tiny import loaded_pair, random_draft, tiny_target


def load(
    model: str = "tiny",
    draft: str = "auto",
    cache: CacheConfig | None = None,
    hooks: LoadHooks | None = None,
    kernels: KernelPolicy = "auto",
) -> Engine:
    """Replace `dflash_mlx.load`; the model name `bad` raises BadCheckpoint."""
    hooks = hooks or LoadHooks()
    hooks.on_step(f"loading {model}")
    if model == "bad":
        raise BadCheckpoint("bad.safetensors is not readable; fetch it again")
    worker = Worker(model)

    def make() -> LoadedPair:
        target = tiny_target("qwen3")
        if draft == "none":
            return loaded_pair(Pair(target), model_name=model, draft_name=None)
        return loaded_pair(Pair(target, random_draft(target)), model_name=model)

    return Engine(worker.run(make), worker)
