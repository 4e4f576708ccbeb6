"""AMD GPUs: chips, lowering to AMDGPU code, linking, running on a device or emulated."""
