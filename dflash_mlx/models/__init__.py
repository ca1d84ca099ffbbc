"""Forward passes of the target and draft models, and the protocols the decode loop needs.

It must not know files, text, requests or clocks.
"""

__all__ = [
    "draft",
    "pair",
    "protocols",
    "random_keys",
    "rope_config",
    "targets",
]
