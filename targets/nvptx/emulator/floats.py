"""Floating point arithmetic of every type: f32, f64, f16, bf16 and their packed forms.

Results are rounded once, as the instruction says. The `.approx` instructions are computed in
float64 and rounded to nearest, so they are within the error that PTX documents and not the
hardware's bits (see `approximations`). A NaN that arithmetic gives is the hardware's canonical one:
positive, with all fraction bits set. f64 hands an operand's on, made quiet; one that an invalid
operation gives is the processor's own, which is NVIDIA's too. `.ftz` decides by the result
rounded as if exponents had no end. All of this is as an H200 has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiledsl.targets.gpu.emulator.fused import two_sum
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator import approximations
from tiledsl.targets.nvptx.emulator import float_values as exact
from tiledsl.targets.nvptx.emulator.float_values import (
    canonical,
    flush,
    narrow,
    propagate,
    quiet,
    saturate,
)
from tiledsl.targets.nvptx.emulator.opcodes import Decoder, Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Values, select
from tiledsl.targets.nvptx.emulator.text import Parsed

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
_MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class _Finish:
    """What happens to operands before and to results after: `.ftz`, `.sat`, `.relu`."""

    flushes: bool
    saturates: bool
    relu: bool

    @classmethod
    def take(cls, options: Options) -> _Finish:
        """Take the modifiers."""
        return cls(options.flag("ftz"), options.flag("sat"), options.flag("relu"))

    def around(self, function: Callable[..., Values]) -> Callable[..., Values]:
        """Return a function with them applied."""
        if not (self.flushes or self.saturates or self.relu):
            return lambda *operands: canonical(function(*operands))

        def finished(*operands: Values) -> Values:
            given = [flush(one) for one in operands] if self.flushes else operands
            found = canonical(function(*given))
            if self.flushes:
                found = flush(found)
            if self.saturates:
                found = saturate(found)
            return select(found <= 0, found.dtype.type(0), found) if self.relu else found

        return finished


def _rounded(function: Callable[..., Values]) -> Decoder:
    """Return a decoder for what takes a rounding mode last."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(FLOATS)
        mode = options.choice(_MODES, "rn")
        finish = _Finish.take(options)
        to, *sources = instruction.operands
        kinds = [kind] * len(sources)
        if kind in ("f16", "bf16") and options.flag("f32"):  # mixed: the last operand is f32
            kind = kinds[-1] = "f32"
        options.done()
        element = TYPES[kind].element

        def compute(*operands: Values) -> Values:
            given = [one.astype(element, copy=False) for one in operands]
            found = function(*given, mode)
            if kind == "f64":
                found = propagate(found, *(given[place] for place in _FIRST_NAN[len(given)]))
            return _flush_early(function, found, given, mode) if finish.flushes else found

        plain = _PLAIN.get(function) if mode == "rn" and len({kind, *kinds}) == 1 else None
        if kind == "f64" or finish.flushes:
            plain = None
        around = finish.around(plain or compute)
        return context.compute(to, kind, around, list(zip(sources, kinds, strict=True)))

    return decode


_FIRST_NAN = {2: (1, 0), 3: (1, 2, 0)}
"""The operands of f64 instructions, by their number, in the order in which a NaN is handed on."""


def _flush_early(
    function: Callable[..., Values], found: Values, given: list[Values], mode: str
) -> Values:
    """Return 0 where a result is the least normal number only because subnormal ones are rarer.

    The chip rounds as if exponents went on, and flushes what is too small then.
    """
    if function not in (exact.multiply, exact.fused_multiply_add, exact.divide):
        return found
    least = exact.least_normal(found.dtype)
    edge = np.abs(found) == least
    if not edge.any():
        return found
    a, b, *rest = (one.astype(np.float64) for one in given)
    if function is exact.divide:
        total = a / b
    else:
        total = exact.to_odd(*two_sum(a * b, rest[0])) if rest else a * b
    scaled = np.abs(narrow(total * _SCALE, found.dtype, mode).astype(np.float64))
    lost = edge & (scaled < float(least) * _SCALE)
    return select(lost, np.copysign(found.dtype.type(0), found), found)


_SCALE = 2.0**10
"""What lifts numbers just below the least normal one above it, in every type."""


_PLAIN: dict[Callable[..., Values], Callable[..., Values]] = {
    exact.add: np.add,
    exact.subtract: np.subtract,
    exact.multiply: np.multiply,
}
"""What rounds to nearest by itself."""


# --- quotients and roots -------------------------------------------------------------------------


def _quotient(a: Values, b: Values, mode: str) -> Values:
    """Return a / b; of `.approx` 0 where 1/b would be subnormal, as PTX says."""
    if mode != "approx":
        return exact.divide(a, b, "rn" if mode == "full" else mode)
    large = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    lost = select(np.isinf(a), np.float32(np.nan), np.copysign(np.float32(0), a) * np.sign(b))
    found: Values = select(large & ~np.isnan(a), lost, a / b)
    return found


def _reciprocal(a: Values, mode: str) -> Values:
    return exact.divide(np.ones_like(a), a, "rn" if mode == "approx" else mode)


def _root(a: Values, mode: str) -> Values:
    return exact.square_root(a, "rn" if mode == "approx" else mode)


def _reciprocal_root(a: Values, mode: str) -> Values:
    found: Values = (1 / np.sqrt(a.astype(np.float64))).astype(a.dtype)
    return found


def _approximated(function: Callable[..., Values]) -> Decoder:
    """Return a decoder for what is either rounded in a mode or `.approx` (or `.full`)."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(("f32", "f64"))
        mode = options.choice((*_MODES, "approx", "full"))
        finish = _Finish.take(options)
        options.done()
        coarse = kind == "f64" and finish.flushes

        def compute(*operands: Values) -> Values:
            given = [_upper_half(one) for one in operands] if coarse else list(operands)
            found = function(*given, mode)
            if finish.flushes and function is _quotient:
                found = _flush_early(exact.divide, found, given, mode if mode in _MODES else "rn")
            return _upper_half(found) if coarse else found

        return approximations.step(instruction, context, kind, finish.around(compute))

    return decode


def _upper_half(values: Values) -> Values:
    """Return f64 as `.approx.ftz.f64` takes and gives it: the lower 32 bits are zero."""
    bits = np.ascontiguousarray(values).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    return bits.view(np.float64).reshape(np.shape(values))


# --- functions -----------------------------------------------------------------------------------


def _function(function: Callable[[Values], Values]) -> Decoder:
    """Return a decoder for ex2, lg2, sin, cos and tanh: float64, then one rounding."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(FLOATS)
        options.ignore("approx")
        finish = _Finish.take(options)
        options.done()

        def compute(values: Values) -> Values:
            return narrow(function(values.astype(np.float64)), values.dtype)

        return approximations.step(instruction, context, kind, finish.around(compute))

    return decode


# --- signs ---------------------------------------------------------------------------------------


def _negation(instruction: Parsed, context: Context) -> Step:
    return _sign_operation(instruction, context, np.negative)


def _magnitude(instruction: Parsed, context: Context) -> Step:
    return _sign_operation(instruction, context, np.abs)


def _sign_operation(instruction: Parsed, context: Context, act: Callable[[Values], Values]) -> Step:
    """Decode neg or abs, which are additions on the chip: a NaN of f64 keeps its sign."""
    options = Options(instruction)
    kind = options.last(FLOATS)
    flushes = options.flag("ftz")
    options.done()

    def compute(values: Values) -> Values:
        given = flush(values) if flushes else values
        if kind == "f64":
            return propagate(act(given), given)
        return canonical(act(given))

    to, source = instruction.operands
    return context.compute(to, kind, compute, [(source, kind)])


def _copy_sign(instruction: Parsed, context: Context) -> Step:
    """Decode copysign: the magnitude of the second with the sign of the first."""
    options = Options(instruction)
    kind = options.last(("f32", "f64"))
    options.done()
    to, a, b = instruction.operands

    def compute(sign: Values, magnitude: Values) -> Values:
        found: Values = np.copysign(magnitude, sign)
        return found

    return context.compute(to, kind, compute, [(a, kind), (b, kind)])


# --- minima and maxima ---------------------------------------------------------------------------


def extreme(a: Values, b: Values, largest: bool, keeps_nan: bool) -> Values:
    """Return the larger (smaller) of each pair; +0 is larger than -0.

    A NaN loses against a number, unless `keeps_nan`; a NaN that is left is the canonical one, of
    f64 the second operand's.
    """
    if keeps_nan:
        found: Values = np.maximum(a, b) if largest else np.minimum(a, b)
    else:
        found = np.fmax(a, b) if largest else np.fmin(a, b)
    zero = found == 0
    if zero.any():  # NumPy takes either of two zeros
        signs = np.signbit(a) & np.signbit(b) if largest else np.signbit(a) | np.signbit(b)
        zeros = select(signs, found.dtype.type(-0.0), found.dtype.type(0))
        found = select(zero & (a == b), zeros, found)
    if found.dtype.itemsize < 8:
        return canonical(found)
    both: Values = select(np.isnan(a) & np.isnan(b), quiet(b), found)
    return both


def _extreme(largest: bool) -> Decoder:
    """Return a decoder for min and max of two values, or of three."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(FLOATS)
        flushes, keeps_nan = options.flag("ftz"), options.flag("NaN")
        signs = options.flag("xorsign")
        magnitudes = options.flag("abs")
        options.done()
        to, *sources = instruction.operands

        def compute(*operands: Values) -> Values:
            given = [flush(one) for one in operands] if flushes else list(operands)
            sizes = [np.abs(one) for one in given] if magnitudes else given
            found = sizes[0]
            for one in sizes[1:]:
                found = extreme(found, one, largest, keeps_nan)
            if signs:
                negative = np.signbit(given[0]) ^ np.signbit(given[1])
                found = canonical(select(negative, -np.abs(found), np.abs(found)))
            return found

        return context.compute(to, kind, compute, [(source, kind) for source in sources])

    return decode


# --- properties ----------------------------------------------------------------------------------


def _is_normal(values: Values) -> Values:
    return np.isfinite(values) & ~_is_subnormal(values)  # zeros are (PTX ISA, testp)


def _is_subnormal(values: Values) -> Values:
    return (values != 0) & (np.abs(values) < np.finfo(values.dtype).tiny)


_PROPERTIES: dict[str, Callable[[Values], Values]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda values: ~np.isnan(values),
    "notanumber": np.isnan,
    "normal": _is_normal,
    "subnormal": _is_subnormal,
}


def _test_property(instruction: Parsed, context: Context) -> Step:
    """Decode testp."""
    options = Options(instruction)
    kind = options.last(("f32", "f64"))
    test = _PROPERTIES[options.choice(tuple(_PROPERTIES))]
    options.done()
    to, source = instruction.operands
    return context.compute(to, "pred", test, [(source, kind)])


def _tables() -> dict[str, Opcode]:
    decoders: dict[str, Decoder] = {
        "add": _rounded(exact.add),
        "sub": _rounded(exact.subtract),
        "mul": _rounded(exact.multiply),
        "fma": _rounded(exact.fused_multiply_add),
        "mad": _rounded(exact.fused_multiply_add),
        "div": _approximated(_quotient),
        "rcp": _approximated(_reciprocal),
        "sqrt": _approximated(_root),
        "rsqrt": _approximated(_reciprocal_root),
        "ex2": _function(np.exp2),
        "lg2": _function(np.log2),
        "sin": _function(np.sin),
        "cos": _function(np.cos),
        "tanh": _function(np.tanh),
        "neg": _negation,
        "abs": _magnitude,
        "min": _extreme(largest=False),
        "max": _extreme(largest=True),
    }
    return {
        f"{stem}.{kind}": Opcode(decode, InstructionClass.FLOAT)
        for stem, decode in decoders.items()
        for kind in FLOATS
    }


TABLE: Table = {
    **_tables(),
    "copysign": Opcode(_copy_sign, InstructionClass.FLOAT),
    "testp": Opcode(_test_property, InstructionClass.FLOAT),
}
