"""NVIDIA GPUs: chips, lowering to PTX, assembling, running on a device or emulated."""
