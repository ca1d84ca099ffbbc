"""placeholder"""

from typing import Any

Divergence = Any


def compare_targets(*a):
    return None, "not yet"
