"""Divide many registers by one number through its reciprocal, with the very same quotients.

A correctly rounded division takes some ten instructions, the test for operands out of range and the
call behind it among them, and NVIDIA's branches once an element. Where a thread divides many
registers by the same number (a row by its sum) the reciprocal is a division done once, and each
quotient takes three instructions (Markstein, "Computation of elementary functions on the IBM RISC
System/6000 processor", 1990):

    q0 = x r,  e = q0 s - x,  q = q0 - e r      where r is 1/s, each line rounded once

Without underflow and overflow e is exact and q the quotient rounded once. For single precision that
is proved by search. Count significands as integers: q0 lies within 1.5 units of the quotient, so q
may be wrong only where the quotient is within 3 / (2 s) units of the middle between two floats; few
x of each s are so close, and all were tried. The order of the signs lets q have the sign of a zero
x, for s > 0.

What could go wrong is tested for all of a thread's registers at once, some three instructions each,
and one branch takes the division itself instead:

- s is not a positive number whose reciprocal is normal;
- an x, not zero, is so small that e or q might be subnormal;
- an x is so large that q might overflow, infinite, or not a number.

Exponentials, squares and the like are hardly ever negative, so that there a sign may count among
what could go wrong: then the test takes half as many instructions.

A quotient that is only wanted in bf16 needs less. q0 is within 1.5 units of x / s, whatever x is
(subnormal numbers and overflow included), so both round to the same bf16 unless q0 is one of the
three floats about a middle between two of them, whose low half is 7fff, 8000 or 8001: where it is 2
units above a middle, x / s is more than half a unit above it, so that rounded to f32 it is above it
too. Three in 65536 have to be divided.

Before: the `machine` level.
After: the same; an f32 `arith.divf` of four or more registers for each different divisor is in the
unlikely branch of an `scf.if`. Divisions with fast-math flags that allow a reciprocal are left.

    %d = vector.broadcast %s : f32 to vector<8xf32>
    %q = arith.divf %x, %d : vector<8xf32>
becomes
    %r = arith.divf %one, %s : f32
    ...
    %q = scf.if %safe -> (vector<8xf32>) {
      scf.yield %corrected : vector<8xf32>
    } else {
      %exact = arith.divf %x, %d : vector<8xf32>
      scf.yield %exact : vector<8xf32>
    }
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from mlir import ir
from mlir.dialects import arith, scf

from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.signs import is_hardly_negative
from tiledsl.transforms.lanes import Lanes, fma

_FEWEST = 4
"""Registers of one divisor from which on a shared reciprocal is shorter than divisions."""
_PIECE = 8
"""Registers of one test for bf16: dividends and quotients are both alive until it is over."""
_LEAST_X = 2.0**-100
"""e is a multiple of 2^-48 |x|, and has to be one of 2^-149."""
_MOST_X = 2.0**127
_LEAST_QUOTIENT, _MOST_QUOTIENT = 2.0**-125, 2.0**126
_LEAST_S, _MOST_S = 2.0**-126, 2.0**126


def share_divisors(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        if not _is_exact_division(op):
            continue
        x, divisor = op.operation.operands
        quotient = op.operation.results[0]
        if emit.registers_of(divisor) < _FEWEST * len(groups_of_equals(divisor)):
            continue
        with ir.InsertionPoint(op), op.operation.location:
            if _is_rounded_to_bf16(quotient):
                made = emit.concatenate([d.for_bf16() for d in _pieces(x, divisor)])
            else:
                made = _Division(x, divisor).for_f32()
        quotient.replace_all_uses_with(made)
        op.operation.erase()


def _is_exact_division(op: ir.OpView) -> bool:
    """Whether an op divides vectors of f32 and has to round once."""
    if op.operation.name != "arith.divf":
        return False
    type_ = op.operation.results[0].type
    if not emit.is_vector(type_) or emit.scalar_of(type_) != ir.F32Type.get():
        return False
    attributes = op.operation.attributes
    flags = str(attributes["fastmath"]) if "fastmath" in attributes else ""
    return not any(flag in flags for flag in ("arcp", "afn", "fast>"))


def _is_rounded_to_bf16(quotient: ir.Value) -> bool:
    """Whether nothing wants a vector of f32 but for rounding it to bf16."""
    owners = [use.owner for use in quotient.uses]
    return bool(owners) and all(
        owner.name == "arith.truncf" and emit.scalar_of(owner.results[0].type) == ir.BF16Type.get()
        for owner in owners
    )


# Which registers are equal.


def groups_of_equals(value: ir.Value) -> list[list[int]]:
    """Return the registers of a vector, those together that hold one number by construction."""
    groups: dict[int, list[int]] = {}
    for register, number in enumerate(_Numbers().of(value)):
        groups.setdefault(number, []).append(register)
    return list(groups.values())


class _Numbers:
    """Numbers for registers, the same for registers that are equal.

    Each value is looked at once, whatever the number of ways that lead to it: they double with each
    step of a reduction over lanes.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[ir.Value, Sequence[int]] = {}

    def of(self, value: ir.Value) -> Sequence[int]:
        """Return the number of each register of a vector, or of the one that a scalar is."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._look_at(value)
        return known

    def fresh(self, value: ir.Value) -> Sequence[int]:
        """Return numbers for registers of which nothing is known."""
        return [self._number((value, i)) for i in range(_count(value))]

    def same(self, value: ir.Value) -> Sequence[int]:
        """Return numbers for registers that are all equal."""
        return [self._number((value, 0))] * _count(value)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _look_at(self, value: ir.Value) -> Sequence[int]:
        op: Any = value.owner.opview if isinstance(value.owner, ir.Operation) else value.owner
        if not isinstance(op, ir.OpView):
            return self.fresh(value)
        read = _READ.get(op.operation.name)
        if read is not None:
            return read(self, op)
        if not (op.operation.name.startswith(("arith.", "math.")) and op.operation.operands):
            return self.fresh(value)
        # A scalar operand, as the condition of a select may be, is every register's.
        operands = [list(self.of(v)) * (_count(value) // _count(v)) for v in op.operation.operands]
        return [self._number((value, *column)) for column in zip(*operands, strict=True)]


def _count(value: ir.Value) -> int:
    return emit.registers_of(value) if emit.is_vector(value.type) else 1


def _of_broadcast(numbers: _Numbers, op: Any) -> Sequence[int]:
    held = numbers.of(op.operation.operands[0])
    return list(held) * (emit.registers_of(op.operation.results[0]) // len(held))


def _of_shuffle(numbers: _Numbers, op: Any) -> Sequence[int]:
    held = _of_elements(numbers, op)
    mask: Sequence[int] = op.operation.attributes["mask"]
    unknown = numbers.fresh(op.operation.results[0])
    return [held[i] if i >= 0 else unknown[register] for register, i in enumerate(mask)]


def _of_slice(numbers: _Numbers, op: Any) -> Sequence[int]:
    (start,) = (int(ir.IntegerAttr(i).value) for i in op.operation.attributes["offsets"])
    count = emit.registers_of(op.operation.results[0])
    return numbers.of(op.operation.operands[0])[start : start + count]


def _of_elements(numbers: _Numbers, op: Any) -> Sequence[int]:
    return [number for value in op.operation.operands for number in numbers.of(value)]


def _of_constant(numbers: _Numbers, op: Any) -> Sequence[int]:
    result: ir.Value = op.operation.results[0]
    splat = emit.is_vector(result.type) and op.operation.attributes["value"].is_splat
    return numbers.same(result) if splat else numbers.fresh(result)


_READ: dict[str, Callable[[_Numbers, Any], Sequence[int]]] = {
    "arith.constant": _of_constant,
    "vector.broadcast": _of_broadcast,
    "vector.extract_strided_slice": _of_slice,
    "vector.from_elements": _of_elements,
    "vector.shuffle": _of_shuffle,
}


# Dividing.


class _Division:
    """A division whose divisor's registers fall into groups of equals, and ways to do it."""

    def __init__(self, x: ir.Value, divisor: ir.Value) -> None:
        self._x, self._divisor = x, divisor
        groups = groups_of_equals(divisor)
        self._dividends = [Lanes(emit.shuffle(self._x, group)) for group in groups]
        self._divisors = [Lanes(emit.extract(self._divisor, group[0])) for group in groups]
        self._reciprocals = [1.0 / s for s in self._divisors]
        order = [register for group in groups for register in group]
        self._back = sorted(range(len(order)), key=order.__getitem__)

    def for_f32(self) -> ir.Value:
        """Build the quotient rounded once."""
        return self._choose(_are_correctible, _corrected)

    def for_bf16(self) -> ir.Value:
        """Build a quotient that rounds to the same bf16."""
        return self._choose(_are_clear_in_bf16, _multiplied)

    def _choose(self, test: Test, short: Formula) -> ir.Value:
        """Build the short way, for where all registers pass a test, and the division."""
        groups = list(zip(self._dividends, self._divisors, self._reciprocals, strict=True))
        tests = [arith.andi(_is_divisor(s), test(x, s, r)) for x, s, r in groups]
        choice: Any = scf.IfOp(functools.reduce(arith.andi, tests), [self._x.type], has_else=True)
        with ir.InsertionPoint(choice.then_block):
            whole = emit.concatenate([short(x, s, r).value for x, s, r in groups])
            scf.YieldOp([emit.shuffle(whole, self._back)])
        with ir.InsertionPoint(choice.else_block):
            # Lest LLVM divides before the branch and selects: one division looks cheap to it.
            emit.intrinsic("llvm.sideeffect", [])
            scf.YieldOp([arith.divf(self._x, self._divisor)])
        return cast("ir.Value", choice.results[0])


def _pieces(x: ir.Value, divisor: ir.Value) -> list[_Division]:
    """Return a division as several of few registers."""
    count = emit.registers_of(x)
    starts = range(0, count, _PIECE)
    return [
        _Division(*(emit.part(v, start, min(_PIECE, count)) for v in (x, divisor)))
        for start in starts
    ]


# Formulas: the quotients of many numbers and another one, given its reciprocal.

Formula = Callable[[Lanes, Lanes, Lanes], Lanes]


def _multiplied(x: Lanes, s: Lanes, r: Lanes) -> Lanes:
    """Return x times the reciprocal."""
    del s
    return x * Lanes(emit.like(r.value, x.type))


def _corrected(x: Lanes, s: Lanes, r: Lanes) -> Lanes:
    """Return the product corrected by what is left of x."""
    wide_s, negative_r = (Lanes(emit.like(v.value, x.type)) for v in (s, -r))
    q0 = _multiplied(x, s, r)
    return fma(fma(q0, wide_s, -x), negative_r, q0)


# Tests: what implies that a formula is right for many numbers, given another that is a divisor.

Test = Callable[[Lanes, Lanes, Lanes], ir.Value]


def _is_divisor(s: Lanes) -> ir.Value:
    """Return whether s is positive and its reciprocal right to half a unit."""
    return arith.andi(s.ge(_LEAST_S).value, s.le(_MOST_S).value)


def _are_correctible(x: Lanes, s: Lanes, r: Lanes) -> ir.Value:
    """Return what implies that `_corrected` rounds every quotient once.

    Without their sign floats are in the order of their bits; less 1, zero is the largest. With it
    negative ones are larger than all others.
    """
    del r
    least = (s * _LEAST_QUOTIENT).binary("arith.maxnumf", _LEAST_X)
    most = (s * _MOST_QUOTIENT).binary("arith.minnumf", _MOST_X)
    bits = _bits if is_hardly_negative(x.value) else _magnitude
    smallest = _combined("arith.minui", bits(x) - 1)
    largest = _combined("arith.maxui", bits(x))
    return arith.andi(
        emit.compare("uge", smallest, (bits(least) - 1).value),
        emit.compare("ule", largest, bits(most).value),
    )


def _are_clear_in_bf16(x: Lanes, s: Lanes, r: Lanes) -> ir.Value:
    """Return whether all products are more than a unit away from all middles between bf16s."""
    count = emit.registers_of(x.value)
    halves = emit.bitcast(_multiplied(x, s, r).value, emit.integer(16))
    low = emit.shuffle(halves, range(0, 2 * count, 2))
    distances = (Lanes(low) - 0x7FFF).value
    # In pairs, which some chips combine in one instruction.
    pairs = [emit.shuffle(distances, [i, min(i + 1, count - 1)]) for i in range(0, count, 2)]
    nearest = _chain("arith.minui", [Lanes(pair) for pair in pairs])
    least = _combined("arith.minui", nearest)
    return emit.compare("ugt", least, emit.constant(least.type, 2))


def _bits(x: Lanes) -> Lanes:
    return Lanes(emit.bitcast(x.value, emit.integer(32)))


def _magnitude(x: Lanes) -> Lanes:
    return _bits(x) + _bits(x)


def _combined(name: str, x: Lanes) -> ir.Value:
    """Combine all registers of a vector by an op into a scalar."""
    return _chain(name, [Lanes(value) for value in emit.elements(x.value)]).value


def _chain(name: str, values: Sequence[Lanes]) -> Lanes:
    """Combine values one after the other, as instructions that take three operands do best."""
    return functools.reduce(lambda first, other: first.binary(name, other), values)
