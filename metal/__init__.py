"""Metal kernels for drafting and verifying blocks, and the choice between them and stock MLX.

A kernel is a pair: `NAME.metal`, plain text, and `NAME.py` with `NAME_reference` (the
specification, in plain MLX), `NAME_refusal` (why inputs do not fit) and `NAME` (launch, or
reference where there is no Metal). `build.py` holds the one launch. `gate.py` decides which
kernels this machine uses, asking the contests in `*contests.py`; `layers.py` puts the chosen
ones into a loaded model. Nothing here knows models, caches or decoding.
"""
