"""Replace math functions that a target lacks by arithmetic on whole tiles.

No math library is linked into a kernel, and one that were would be called element by element. A
function here becomes a few dozen `arith` ops, each on the whole tile, without a branch: within 2
ulp of the real value over the whole range, subnormal, infinite, NaN and huge arguments and the sign
of zero included. The formulas stand in `math_exp`, `math_log`, `math_trig` and `math_erf`.

The remainder of floats (`arith.remf`) is exact, in a loop of a fixed number of steps.

An op with the flag `afn` (from `fast_math=True`) may use the target's approximate instructions.

Before: `promote_floats` has run, so that math is on f32 and f64 only (or on what `native` names).
After: of `math`, and of `arith.remf`, only what every target has (`EVERYWHERE`), what `native`
names, and, with `afn`, what `approximate` names. New casts between floats and integers are of
`arith`.

    %y = math.exp2 %x : tensor<128xf32>
becomes, where ("math.exp2", "f32") is not native,
    %n = math.fma %x, %one, %magic : tensor<128xf32>
    ...
    %y = arith.mulf %p, %scale : tensor<128xf32>
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlir import ir

from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.transforms import math_erf, math_exp, math_log, math_remainder, math_trig
from tiledsl.transforms.lanes import Lanes, element, fma

Natives = frozenset[tuple[str, str]]
Formula = Callable[..., Lanes]

EVERYWHERE = frozenset(
    f"math.{name}"
    for name in (
        *("absf", "absi", "ceil", "copysign", "ctlz", "ctpop", "cttz", "floor", "fma"),
        *("roundeven", "sqrt", "trunc", "isnan", "isinf", "isfinite"),
    )
)
"""Ops that each target turns into an instruction or two, on any element type it computes with."""


def expand_math(
    module: ir.Module, native: Natives = frozenset(), approximate: Natives = frozenset()
) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        native: (op, element type) pairs that the target computes to 2 ulp, as ("math.exp2", "f32").
        approximate: Pairs for which it has an instruction that is less exact.

    Raises:
        CompilerBug: There is no formula for an op that the target lacks.
    """
    for op in list(operations(module.operation)):
        name = op.operation.name
        if (not name.startswith("math.") and name != "arith.remf") or name in EVERYWHERE:
            continue
        kind = str(element(op.operation.operands[0].type))
        fast = _may_approximate(op)
        usable = native | approximate if fast else native
        if (name, kind) in usable:
            continue
        formula = _fast_formula(name, kind, usable) if fast else None
        formula = formula or _remainder(op, kind) or _formula(name, kind, native)
        if formula is None:
            raise CompilerBug(f"expected a formula for {name} on {kind}, found none")
        with ir.InsertionPoint(op), op.location:
            result = formula(*map(Lanes, op.operation.operands))
        op.operation.results[0].replace_all_uses_with(result.value)
        op.operation.erase()


_REMAINDERS = {"f32": math_remainder.SINGLE, "f64": math_remainder.DOUBLE}


def _remainder(op: ir.OpView, kind: str) -> Formula | None:
    format_ = _REMAINDERS.get(kind)
    if op.operation.name != "arith.remf" or format_ is None:
        return None
    return partial(math_remainder.remainder, format_=format_, straight=_combines(op))


def _combines(op: ir.OpView) -> bool:
    """Return whether an op stands in a combine function, where there may be no loop."""
    around = op.operation.parent
    while around is not None and around.name != "func.func":
        around = around.parent
    return around is not None and "sym_visibility" in around.attributes


def _may_approximate(op: ir.OpView) -> bool:
    attributes = op.operation.attributes
    if "fastmath" not in attributes:
        return False
    flags = str(attributes["fastmath"])
    return "afn" in flags or "<fast>" in flags


def _formula(name: str, kind: str, native: Natives) -> Formula | None:
    """Return the formula of an op, or None."""
    if (name, kind) == ("math.exp", "f32") and ("math.exp2", "f32") in native:
        return math_exp.exp_through_exp2
    if (name, kind) == ("math.tanh", "f32") and ("math.exp2", "f32") in native:
        return _tanh_through_exp2
    if (name, kind) == ("math.erf", "f32") and ("math.exp2", "f32") in native:
        return math_erf.erf_through_exp2
    return _FORMULAS.get((name, kind))


def _tanh_through_exp2(x: Lanes) -> Lanes:
    twice = x.unary("math.absf") * 2.0
    return math_exp.tanh(x, math_exp.SINGLE, math_exp.exp_through_exp2(twice))


def _rsqrt(x: Lanes) -> Lanes:
    return 1.0 / x.unary("math.sqrt")


def _table() -> dict[tuple[str, str], Formula]:
    table: dict[tuple[str, str], Formula] = {}
    for kind, exponential, logarithm, error in (
        ("f32", math_exp.SINGLE, math_log.SINGLE, math_erf.SINGLE),
        ("f64", math_exp.DOUBLE, math_log.DOUBLE, math_erf.DOUBLE),
    ):
        table |= {
            ("math.exp", kind): partial(math_exp.exp, format_=exponential),
            ("math.exp2", kind): partial(math_exp.exp2, format_=exponential),
            ("math.expm1", kind): partial(math_exp.expm1, format_=exponential),
            ("math.tanh", kind): partial(math_exp.tanh, format_=exponential),
            ("math.log", kind): partial(math_log.log, format_=logarithm),
            ("math.log2", kind): partial(math_log.log, format_=logarithm, base=math_log.TWO),
            ("math.log10", kind): partial(math_log.log, format_=logarithm, base=math_log.TEN),
            ("math.log1p", kind): partial(math_log.log1p, format_=logarithm),
            ("math.erf", kind): partial(math_erf.erf, format_=error),
            ("math.sin", kind): partial(math_trig.sin, element=kind),
            ("math.cos", kind): partial(math_trig.cos, element=kind),
            ("math.rsqrt", kind): _rsqrt,
        }
    return table


_FORMULAS = _table()


def _fast_formula(name: str, kind: str, usable: Natives) -> Formula | None:
    """Return the short formula of an op that may be approximate, where there is one."""
    if kind != "f32":
        return None
    needed, formula = _FAST.get(name, (None, None))
    return formula if needed is None or (needed, "f32") in usable else None


def _fast_exp(x: Lanes) -> Lanes:
    return (x * math_exp.LOG2_E).approximate("math.exp2")


def _fast_log(x: Lanes) -> Lanes:
    return x.unary("math.log2") * math_exp.LN2


def _fast_log10(x: Lanes) -> Lanes:
    return x.unary("math.log2") * 0.30102999566398120


def _fast_tanh(x: Lanes) -> Lanes:
    """Return 1 - 2 / (exp(2x) + 1): its error is absolute, some 2^-23."""
    power = (x * (2.0 * math_exp.LOG2_E)).approximate("math.exp2")
    return fma(1.0 / (power + 1.0), -2.0, 1.0)


_FAST: dict[str, tuple[str | None, Formula]] = {
    "math.exp": ("math.exp2", _fast_exp),
    "math.tanh": ("math.exp2", _fast_tanh),
    "math.erf": ("math.exp2", math_erf.short_erf),
    "math.log": ("math.log2", _fast_log),
    "math.log10": ("math.log2", _fast_log10),
    "math.sin": (None, math_trig.sin_of_small),
    "math.cos": (None, math_trig.cos_of_small),
}
"""Short formulas in f32, by the op, with the op that they need if any."""
