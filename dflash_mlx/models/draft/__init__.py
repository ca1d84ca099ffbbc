"""The DFlash and DFlash 2 draft models and their configuration.

It must not know checkpoints' folders or the decode loop.
"""

__all__ = [
    "build",
    "config",
    "config_file",
    "dflash",
    "dflash2",
    "rope",
    "tensor_names",
]
