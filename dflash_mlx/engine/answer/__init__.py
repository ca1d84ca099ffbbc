"""From the tokens of an answer to its text, parts, events and tool calls.

It must not know requests, prompts or threads.
"""

__all__ = [
    "collector",
    "parser",
    "text",
]
