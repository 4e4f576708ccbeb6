"""The host's passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE, TILE
from tiledsl.targets.host.carry_scalars import carry_scalars
from tiledsl.targets.host.cpu import host_cpu
from tiledsl.targets.host.debug import leave_failed_programs
from tiledsl.targets.host.lower import lower_programs
from tiledsl.targets.host.widen_dots import widen_dots
from tiledsl.targets.target import Options
from tiledsl.transforms.expand_casts import Conversions, expand_casts
from tiledsl.transforms.expand_division import expand_division
from tiledsl.transforms.expand_math import expand_math
from tiledsl.transforms.promote_floats import promote_floats
from tiledsl.transforms.run import Step, upstream
from tiledsl.transforms.simplify import simplify

TO_LLVM = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


_HALF: Conversions = frozenset({("f16", "f32"), ("f32", "f16")})


def passes(options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` to the `llvm` level."""
    cpu = host_cpu()
    native = _HALF if cpu.half else frozenset[tuple[str, str]]()
    return [
        # What the kernel means, on any machine.
        Step(simplify, TILE),
        # Before anything is expanded, while what a loop adds is easy to see.
        Step(carry_scalars, TILE),
        # Products first, as the conversions that they want are expanded below.
        Step(widen_dots, TILE),
        Step(expand_division, TILE),
        # Functions are expanded in f32: small floats must have become that before.
        Step(promote_floats, TILE),
        Step(expand_math, TILE),
        Step(partial(expand_casts, native=native), TILE),
        # The expansions share most of their constants and subexpressions.
        Step(simplify, TILE),
        Step(partial(lower_programs, cpu=cpu), MACHINE),
        Step(upstream(TO_LLVM, "convert_to_llvm"), LLVM),
        Step(leave_failed_programs, LLVM),
    ]
