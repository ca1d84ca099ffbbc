"""A loaded pair and its worker thread: sessions, requests, streams and statistics.

It must not know the command line or the applications.
"""

__all__ = [
    "engine",
    "learning",
    "loaded",
    "session",
    "stats",
    "stream",
]
