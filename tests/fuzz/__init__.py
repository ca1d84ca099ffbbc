"""Mutated files through every entry point that reads files of others; see `harness.py`."""
