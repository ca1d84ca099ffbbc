"""Turns local folders into models and tokenizers in memory, after checking them.

It must not know the network, requests or the decode loop.
"""

__all__ = [
    "answer_format",
    "arguments",
    "chat_template",
    "compatibility",
    "compute",
    "draft",
    "generation",
    "safetensors",
    "target",
    "tokenizer",
    "weights",
]
