"""Passes over the IR, one a file, and the value-level analyses they use."""
