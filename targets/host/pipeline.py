"""The host's passes, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE, TILE
from tiledsl.targets.host.carry_scalars import carry_scalars
from tiledsl.targets.host.convert_to_llvm import convert_to_llvm
from tiledsl.targets.host.cpu import Cpu
from tiledsl.targets.host.lower import lower_programs
from tiledsl.targets.host.widen_dots import widen_dots
from tiledsl.targets.target import Options
from tiledsl.transforms.expand_casts import Conversions, expand_casts
from tiledsl.transforms.expand_descriptors import expand_descriptors
from tiledsl.transforms.expand_division import expand_division
from tiledsl.transforms.expand_math import expand_math
from tiledsl.transforms.promote_floats import promote_floats
from tiledsl.transforms.run import Step
from tiledsl.transforms.simplify import simplify

_HALF: Conversions = frozenset({("f16", "f32"), ("f32", "f16")})


def passes(options: Options, cpu: Cpu) -> Sequence[Step]:
    """Return the passes from the `tile` to the `llvm` level."""
    native = _HALF if cpu.half else frozenset[tuple[str, str]]()
    return [
        # What the kernel means, on any machine.
        Step(simplify, TILE),
        Step(expand_descriptors, TILE),
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
        Step(convert_to_llvm, LLVM),
    ]
