"""tiledsl: a tile-level kernel language for NVIDIA GPUs, AMD GPUs and the CPU."""
