"""What a draft's files call its tensors, and what our modules call them."""

_CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")
"""Published DFlash 2 files hold these as bare arrays; as embeddings they can be quantized."""

_UNUSED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq", "t2d")
"""What speculators and old exports store besides: parts of the target, and the way back from its
vocabulary to a reduced one."""


def runtime_name(name: str) -> str | None:
    """Return what our modules call a draft's tensor; None for one that they have no use for."""
    name = name.removeprefix("model.")
    if name in _CODEBOOKS:
        return f"{name}.weight"
    return None if name.endswith(_UNUSED) else name
