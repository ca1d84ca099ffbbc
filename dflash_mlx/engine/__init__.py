"""Answers requests with a loaded pair: sessions, streams, statistics, and the worker thread.

It must not know the command line or the applications.
"""

__all__ = [
    "chat",
    "engine",
    "events",
    "load",
    "loaded",
    "measured_costs",
    "resolved_request",
    "session",
    "stats",
    "stream",
]
