"""The CPU: the target that is always there."""
