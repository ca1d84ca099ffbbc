"""The names of a draft's tensors in published files, and those of its modules here."""

_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
"""Published DFlash 2 files hold these without `.weight`; here they are embeddings, which can be
quantized."""

_UNUSED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq", "t2d")
"""Tensors of speculators and old exports that a forward pass does not use: parts of the target,
and the map from its vocabulary to a reduced one."""


def runtime_name(name: str) -> str | None:
    """Return the module name of a stored tensor, None for a tensor that is not used."""
    name = name.removeprefix("model.")
    if name in _CODEBOOKS:
        return f"{name}.weight"
    return None if name.endswith(_UNUSED) else name
