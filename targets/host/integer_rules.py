"""The integer operations that keep lanes `Uniform` or `Stepped`, and when they may.

A rule returns None where the result would be neither; the op is then built on vectors. Offsets wrap
as the type does, so addition, subtraction and multiplication are exact anyway. Widening must not
carry (see `lanes`), and neither must what takes bits apart, which then distributes over base and
offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from mlir import ir

from tiledsl.targets.host.code import SGE, SLE
from tiledsl.targets.host.lanes import (
    Offsets,
    Simple,
    Stepped,
    Uniform,
    disjoint,
    known_ones,
    mask_of,
    once,
    ones_of_difference,
    ones_of_product,
    ones_of_sum,
    scalar_part,
)
from tiledsl.targets.host.machine_types import integer, vector_type, width_of

if TYPE_CHECKING:
    from tiledsl.targets.host.arithmetic import Arithmetic

Rule: TypeAlias = "Callable[[Arithmetic, Simple, Simple, ir.Type], Simple | None]"


def _wrapped(offsets: Offsets, width: int) -> Offsets:
    """Wrap offsets to a signed integer of `width` bits."""
    spare = 64 - width
    return offsets << spare >> spare


def _parts(a: Simple) -> tuple[Uniform, Offsets | None]:
    return scalar_part(a), None if isinstance(a, Uniform) else a.offsets


def _widen(me: Arithmetic, name: str, a: Simple, element: ir.Type) -> Simple:
    """Sign- or zero-extend."""
    narrow = width_of(scalar_part(a).value.type)
    ones = known_ones(a)
    sign = ones >> (narrow - 1) & 1 and name == "extsi"
    wide_ones = ones | (mask_of(width_of(element)) & ~mask_of(narrow)) if sign else ones
    base = scalar_part(a).value
    if isinstance(a, Uniform) and a.constant is not None:
        value = a.constant if name == "extsi" else a.constant & mask_of(narrow)
        return me.constant(element, value)
    at = me.nest.at(a.level)
    wide = me.code.op(f"arith.{name}", [base], element, at)
    if isinstance(a, Uniform):
        return Uniform(wide, a.level, wide_ones)
    lanes = len(a.offsets)
    if a.guard is None and disjoint(ones, a.offsets, narrow):
        return Stepped(wide, a.offsets, a.level, wide_ones)
    exact = once(
        lambda: me.code.op(
            f"arith.{name}",
            [me.vector(a, lanes)],
            vector_type(element, lanes),
            me.nest.at(a.level),
        )
    )
    guard = _no_wrap(me, a) if name == "extsi" else None
    if guard is None:
        return Stepped(wide, a.offsets, a.level, wide_ones, me.code.constant(integer(1), 0), exact)
    if a.guard is not None:
        guard = me.code.binary("andi", guard, a.guard, at)
    return Stepped(wide, a.offsets, a.level, wide_ones, guard, exact)


def _no_wrap(me: Arithmetic, a: Stepped) -> ir.Value:
    """Return whether base + offset stays in the signed range in every lane."""
    type_ = a.base.type
    width = width_of(type_)
    at = me.nest.at(a.level)
    low, high = int(a.offsets.min()), int(a.offsets.max())
    most = me.code.constant(type_, mask_of(width - 1) - max(high, 0))
    guard = me.code.compare(SLE, a.base, most, at)
    if low < 0:
        least = me.code.constant(type_, -(1 << (width - 1)) - low)
        enough = me.code.compare(SGE, a.base, least, at)
        guard = me.code.binary("andi", guard, enough, at)
    return guard


def _exactly(me: Arithmetic, name: str, a: Simple, b: Simple, lanes: int) -> Callable[[], ir.Value]:
    """Return what makes the vector of an op on operands of which one is guarded."""
    level = max(a.level, b.level)
    return once(
        lambda: me.code.binary(name, me.vector(a, lanes), me.vector(b, lanes), me.nest.at(level))
    )


def _join(
    me: Arithmetic, base: Uniform, offsets: Offsets | None, whole: Callable[[], ir.Value] | None,
    guard: ir.Value | None, width: int, element: ir.Type,
) -> Simple:  # fmt: skip
    """Return base + offsets in the simplest form."""
    if offsets is None:
        return base
    offsets = _wrapped(offsets, width)
    if guard is None and not np.any(offsets != offsets[0]):
        return me.add(base, me.constant(element, int(offsets[0])), element)
    return Stepped(base.value, offsets, base.level, base.ones, guard, whole)


def _guards(me: Arithmetic, a: Simple, b: Simple, level: int) -> ir.Value | None:
    found = [x.guard for x in (a, b) if isinstance(x, Stepped) and x.guard is not None]
    if len(found) == 2:
        return me.code.binary("andi", found[0], found[1], me.nest.at(level))
    return found[0] if found else None


def _linear(name: str, sign: int) -> Rule:
    """Return the rule of `addi` or `subi`."""

    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple:
        width = width_of(element)
        (x, dx), (y, dy) = _parts(a), _parts(b)
        ones = (ones_of_sum if sign > 0 else ones_of_difference)(
            known_ones(a), known_ones(b), width
        )
        if x.constant is not None and y.constant is not None:
            base = me.constant(element, x.constant + sign * y.constant)
        elif y.constant == 0:
            base = x
        elif x.constant == 0 and sign > 0:
            base = y
        else:
            base = me.scalar_op(name, x, y, ones, element)
        if dx is None and dy is None:
            return base
        lanes = len(dx) if dx is not None else len(dy) if dy is not None else 1
        zeros = np.zeros(lanes, np.int64)
        offsets = (zeros if dx is None else dx) + sign * (zeros if dy is None else dy)
        guard = _guards(me, a, b, base.level)
        whole = None
        if guard is not None:
            whole = _exactly(me, name, a, b, lanes)
        return _join(me, base, offsets, whole, guard, width, element)

    return rule


def _multiply(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Uniform) and a.constant is not None:
        a, b = b, a
    width = width_of(element)
    (x, dx), (y, dy) = _parts(a), _parts(b)
    if dy is not None or (dx is not None and y.constant is None):
        return None
    ones = ones_of_product(known_ones(a), known_ones(b), width)
    if x.constant is not None and y.constant is not None:
        base = me.constant(element, x.constant * y.constant)
    elif y.constant == 1:
        return a
    else:
        base = me.scalar_op("muli", x, y, ones, element)
    if dx is None or y.constant is None:
        return base
    guard = _guards(me, a, b, base.level)
    whole = None
    if guard is not None:
        whole = _exactly(me, "muli", a, b, len(dx))
    return _join(me, base, dx * y.constant, whole, guard, width, element)


def _shift_left(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    width = width_of(element)
    if not isinstance(b, Uniform) or b.constant is None or not 0 <= b.constant < width:
        return None
    return _multiply(me, a, me.constant(element, 1 << b.constant), element)


def _shift_right(name: str) -> Rule:
    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
        width = width_of(element)
        if not isinstance(b, Uniform) or b.constant is None or not 0 <= b.constant < width:
            return None
        x, dx = _parts(a)
        if dx is not None and not _splittable(a, width):
            return None
        ones = known_ones(a)
        signed = name == "shrsi" and ones >> (width - 1) & 1
        ones = mask_of(width) if signed else ones >> b.constant
        base = me.scalar_op(name, x, b, ones, element)
        return _join(me, base, None if dx is None else dx >> b.constant, None, None, width, element)

    return rule


def _and(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Uniform) and a.constant is not None:
        a, b = b, a
    if not isinstance(b, Uniform):
        return None
    width = width_of(element)
    x, dx = _parts(a)
    if dx is not None and (b.constant is None or not _splittable(a, width)):
        return None
    base = me.scalar_op("andi", x, b, known_ones(a) & known_ones(b), element)
    offsets = None if dx is None or b.constant is None else dx & b.constant
    return _join(me, base, offsets, None, None, width, element)


def _splittable(a: Simple, width: int) -> bool:
    """Return whether `a` is base | offset in each lane, so that bit operations distribute."""
    return isinstance(a, Stepped) and a.guard is None and disjoint(known_ones(a), a.offsets, width)


def _widening(name: str) -> Rule:
    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple:
        return _widen(me, name, a, element)

    return rule


def _narrow(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Stepped) and a.guard is not None:
        return None
    width = width_of(element)
    x, dx = _parts(a)
    if x.constant is not None:
        base = me.constant(element, x.constant)
    else:
        value = me.code.op("arith.trunci", [x.value], element, me.nest.at(x.level))
        base = Uniform(value, x.level, known_ones(a) & mask_of(width))
    return _join(me, base, dx, None, None, width, element)


RULES: dict[str, Rule] = {
    "arith.addi": _linear("addi", 1),
    "arith.subi": _linear("subi", -1),
    "arith.muli": _multiply,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right("shrsi"),
    "arith.shrui": _shift_right("shrui"),
    "arith.andi": _and,
    "arith.extsi": _widening("extsi"),
    "arith.extui": _widening("extui"),
    "arith.trunci": _narrow,
}
"""By op. A rule takes the arithmetic, the first and last operand and the result's type."""
