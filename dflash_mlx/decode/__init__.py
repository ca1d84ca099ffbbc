"""The decode loop: draft, verify, accept, commit (`loop.decode`).

It must not know text, files, threads or how block sizes are chosen.
"""

__all__ = [
    "accept",
    "early_draft",
    "greedy",
    "history",
    "logits_processors",
    "loop",
    "policy",
    "prefill",
    "readback",
    "round",
    "sampling",
]
