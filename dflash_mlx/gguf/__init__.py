"""Reads GGUF files: header, weights, rotary scaling and tokenizer.

It must not know models in memory.
"""

__all__ = [
    "header",
    "read",
    "tokenizer",
]
