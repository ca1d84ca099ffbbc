"""Block-diffusion speculative decoding (DFlash) for language models on Apple Silicon.

    import dflash_mlx

    with dflash_mlx.load("smollm2-135m") as engine:
        print(engine.generate("Why is the sky blue?").text)

Importing this module imports neither MLX nor any model code; `load` does.
"""

from typing import TYPE_CHECKING, Any

from dflash_mlx.config import CacheConfig, GenerationConfig, SamplingConfig
from dflash_mlx.errors import (
    BadCheckpoint,
    BadRequest,
    DFlashError,
    DownloadFailed,
    EngineBusy,
    OutOfMemoryBudget,
    PairMismatch,
    UnknownModel,
    UnsupportedModel,
)
from dflash_mlx.pairs.card import PairCard
from dflash_mlx.system.blas import use_openblas

if TYPE_CHECKING:
    from dflash_mlx.engine.chat import ChatStream, Done, Notice, PromptProgress
    from dflash_mlx.engine.engine import Engine
    from dflash_mlx.engine.events import (
        ContentDelta,
        ReasoningDelta,
        ToolCall,
        ToolCallDelta,
        ToolCallDropped,
    )
    from dflash_mlx.engine.load import LoadHooks, load
    from dflash_mlx.engine.session import Session
    from dflash_mlx.engine.stats import Stats
    from dflash_mlx.engine.stream import Chunk, Result, Stream

__version__ = "0.1.0"

_LATE = {
    "ChatStream": "engine.chat",
    "Chunk": "engine.stream",
    "ContentDelta": "engine.events",
    "Done": "engine.chat",
    "Engine": "engine.engine",
    "LoadHooks": "engine.load",
    "Notice": "engine.chat",
    "PromptProgress": "engine.chat",
    "ReasoningDelta": "engine.events",
    "Result": "engine.stream",
    "Session": "engine.session",
    "Stats": "engine.stats",
    "Stream": "engine.stream",
    "ToolCall": "engine.events",
    "ToolCallDelta": "engine.events",
    "ToolCallDropped": "engine.events",
    "load": "engine.load",
}
"""Names whose modules import MLX: imported on first use."""

__all__ = [
    "BadCheckpoint",
    "BadRequest",
    "CacheConfig",
    "ChatStream",
    "Chunk",
    "ContentDelta",
    "DFlashError",
    "Done",
    "DownloadFailed",
    "Engine",
    "EngineBusy",
    "GenerationConfig",
    "LoadHooks",
    "Notice",
    "OutOfMemoryBudget",
    "PairCard",
    "PairMismatch",
    "PromptProgress",
    "ReasoningDelta",
    "Result",
    "SamplingConfig",
    "Session",
    "Stats",
    "Stream",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallDropped",
    "UnknownModel",
    "UnsupportedModel",
    "__version__",
    "load",
    "use_openblas",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
