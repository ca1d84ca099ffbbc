"""Counts the work of our kernels and of MLX's at the layer shapes of real models.

    python -m tests.metal.count            write docs/kernels.md's table and the stored baseline
    python -m tests.metal.count --check    recount what changed and compare (used in CI)

Launches, barriers, 8x8 multiplies and bytes are exact. Times are computed lower bounds; no count
is a speedup.
"""
