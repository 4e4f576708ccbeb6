"""The host's passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE
from tiledsl.targets.host.cpu import host_cpu
from tiledsl.targets.host.lower import lower_programs
from tiledsl.targets.target import Options
from tiledsl.transforms.run import Step, upstream

TO_LLVM = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


def passes(options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` to the `llvm` level."""
    return [
        Step(partial(lower_programs, cpu=host_cpu()), MACHINE),
        Step(upstream(TO_LLVM, "convert_to_llvm"), LLVM),
    ]
