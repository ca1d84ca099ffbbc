"""Opens checkpoints of every supported format as tensors that are read by row range.

It must not know what a conversion does with the tensors.
"""

__all__ = [
    "gguf",
    "location",
    "pairing",
    "remote_shards",
    "sample_text",
    "side_files",
    "source",
    "torch_files",
]
