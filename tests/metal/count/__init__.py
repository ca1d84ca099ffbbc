"""Counts the work of kernels at the layer shapes of real models, ours beside MLX's own.

    python -m tests.metal.count            write docs/kernels.md's table and the stored baseline
    python -m tests.metal.count --check    recount what changed and compare, as CI does

What is counted is exact: launches, barriers, 8x8 multiplies, bytes. What it costs in time on a
GPU is not: the bounds are the least a chip could need, and no count is a speed-up.
"""
