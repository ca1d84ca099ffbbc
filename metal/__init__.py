"""Metal kernels: each `.metal` source with its launcher, its reference and its tuning cases.

It must not know model layers, checkpoints or settings.
"""

__all__ = [
    "attention_cases",
    "attention_geometry",
    "block_attention",
    "build",
    "candidate_path",
    "dense_verify",
    "geometry",
    "grouped_conv",
    "head_argmax",
    "head_merge",
    "matrix_cases",
    "quantized_verify",
    "refusal",
    "small_cases",
    "tuning_case",
    "verify_attention",
]
