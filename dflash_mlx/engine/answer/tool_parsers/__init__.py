"""Parsers of tool calls, whole and while they are written, by the format of the model.

They must not know tokens, events or requests.
"""

__all__ = ["choose"]
