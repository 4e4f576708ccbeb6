"""The vocabulary: the `tile` and `tgpu` dialects, the layout algebra, diagnostics."""
