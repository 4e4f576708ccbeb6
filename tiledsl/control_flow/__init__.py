"""Control flow over run-time values: kernels are rewritten, then run once on tracer values.

source      find a function's tree
desugar     early return, break and continue become structured control flow
liveness    which variables matter where
rewrite     hooks for what may depend on run-time values
function    compile the result as a function like the author's
hooks       what rewritten code calls, built from
calls           calls of other functions
branches        `if`, `and`, `or`, conditional expressions
loops, carry    `for`, `while`, and what they carry; their ops in `loop_ops`
trees, leaves   values inside Python containers
"""
