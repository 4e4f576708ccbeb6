"""Our kernels beside cuBLAS, cuDNN, torch.compile and Triton, in one process on one GPU.

    python -m benchmarks                      # all families; no case begins after 250 s
    python -m benchmarks gemm norm --quick    # two families, a few sizes each
    python -m benchmarks --budget 120         # none after 120 s
    python -m benchmarks --check --part 1/8   # only compile and check an eighth of the cases

Results are checked before they are timed. What is timed, and how, `measure` says; a table, the
numbers as JSON and plots of ratios go to benchmarks/results. Each family is a module with a
function `cases`: tutorial (vector add, ex04's product), gemm, attention, norm (memory), overhead
(launches and compilation).
"""
