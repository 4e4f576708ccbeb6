"""Machines: the host CPU, NVIDIA and AMD GPUs, and what the two GPU back ends share."""
