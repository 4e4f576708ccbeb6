"""The language that kernels are written in: tracer values and the functions over them.

Each topic is a file; `value` holds what they share. All of it is loaded when a kernel is first
traced, because it needs MLIR.
"""
