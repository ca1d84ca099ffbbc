"""The decode loop: draft, verify, accept, commit.

It must not know text, files, threads or how block sizes are chosen.
"""

__all__ = [
    "accept",
    "early_draft",
    "history",
    "logits_processors",
    "loop",
    "policy",
    "prefill",
    "round",
    "sampling",
]
