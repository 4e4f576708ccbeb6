"""Instructions whose results PTX bounds instead of defining, and how far from exact chips may be.

The emulator computes them in float64 and rounds once, so it is within every bound and not a chip's
bits. `BOUNDS` is the one table of what a chip may give; tests hold a GPU to it.

Whatever else a kernel does is exact, so with `computed_by` a test lets a GPU compute just these
instructions, each as it is written, and compares all the rest bit for bit.

Source: PTX ISA 9.0, "Floating Point Instructions" and "Half Precision Floating Point Instructions",
the paragraph on accuracy of each; of f64 `rsqrt.approx`, which has none, CUDA's rsqrt().
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tiledsl.targets.gpu.emulator.program import Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.operands import Context, Values

Compute = Callable[..., Values]
Evaluate = Callable[[str, str, Sequence[Values]], Values]
"""(opcode, its type, operands as that type's elements) to the results, an array of its elements."""


@dataclass(frozen=True)
class Bound:
    """How far from the exact result a chip may be: the larger of two errors.

    A subnormal result may be off by one unit in the last place besides.

    Attributes:
        relative: Times the exact result.
        absolute: Whatever the result.
        largest: The magnitude of operands above which nothing is promised.
    """

    relative: float = 0.0
    absolute: float = 0.0
    largest: float = math.inf


_SINE = Bound(absolute=2**-20.4, largest=2 * math.pi)
"""PTX says 2**-20.5; an H200's cosine is off by up to 2**-20.44 (0x409cdd8d)."""

BOUNDS = {
    "rcp.approx.f32": Bound(2**-23),
    "rcp.approx.f64": Bound(2**-20),
    "sqrt.approx.f32": Bound(2**-23),
    "rsqrt.approx.f32": Bound(2**-22.9),
    "rsqrt.approx.f64": Bound(2**-51),
    "rsqrt.approx.ftz.f64": Bound(2**-20),
    "div.approx.f32": Bound(2**-22, largest=2.0**126),
    "div.full.f32": Bound(2**-22),
    "sin.approx.f32": _SINE,
    "cos.approx.f32": _SINE,
    "lg2.approx.f32": Bound(2**-22, 2**-22),
    "ex2.approx.f32": Bound(2**-22),
    "ex2.approx.f16": Bound(2**-9.9),
    "ex2.approx.bf16": Bound(2**-7),
    "tanh.approx.f32": Bound(2**-11),
    "tanh.approx.f16": Bound(absolute=2**-10.987),
    "tanh.approx.bf16": Bound(absolute=2**-8),
}
"""By opcode, of one element's type, without `.sat` and (unless listed with it) `.ftz`."""


def bound_of(opcode: str) -> Bound | None:
    """Return how far a chip's result of an instruction may be off; None if it is defined."""
    name = opcode.replace(".sat", "").removesuffix("x2")
    return BOUNDS.get(name) or BOUNDS.get(name.replace(".ftz", ""))


_evaluate: ContextVar[Evaluate | None] = ContextVar("tiledsl_approximations", default=None)


@contextmanager
def computed_by(evaluate: Evaluate) -> Generator[None]:
    """Let another one compute approximate instructions in what is decoded within this block."""
    token = _evaluate.set(evaluate)
    try:
        yield
    finally:
        _evaluate.reset(token)


def step(instruction: ptx.Parsed, context: Context, kind: str, compute: Compute) -> Step:
    """Return the step of an instruction of one type that may be approximate.

    Args:
        instruction: What is decoded.
        context: Of the decoding.
        kind: The type of its result and operands.
        compute: What computes it here, modifiers and all.
    """
    evaluate, opcode = _evaluate.get(), instruction.opcode
    to, *sources = instruction.operands
    typed = [(source, kind) for source in sources]
    if evaluate is None or bound_of(opcode) is None:
        return context.compute(to, kind, compute, typed)
    return context.compute(to, kind, lambda *given: evaluate(opcode, kind, given), typed)
