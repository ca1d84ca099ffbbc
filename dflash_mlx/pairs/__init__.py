"""Known pairs of target and draft, and how a name selects one.

It must not know the network or weights.
"""

__all__ = [
    "card",
    "converted",
    "manifest",
    "model_files",
    "pairing",
    "precision",
    "registry",
    "shapes",
]
