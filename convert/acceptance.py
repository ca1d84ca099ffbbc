"""placeholder"""

from typing import Any

Acceptance = Any


def compare_drafts(*a):
    return None, "not yet"
