"""OpenAI's Chat Completions for programs that import this package: the same calls, in process.

It must not know sockets, models or how an answer is generated.
"""

from dflash_mlx.openai.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "client", "request", "response"]
