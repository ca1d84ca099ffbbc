"""Reuse of KV rows across requests: finished and running conversations, found by their tokens.

It must not know text, models or threads.
"""

__all__ = ["conversation", "pool"]
