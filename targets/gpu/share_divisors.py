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

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

from mlir import ir
from mlir.dialects import arith, scf

from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit
from tiledsl.transforms.lanes import Lanes, fma

_FEWEST = 4
"""Registers of one divisor from which on a shared reciprocal is shorter than divisions."""
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
        groups = groups_of_equals(op.operation.operands[1])
        if emit.registers_of(op.operation.operands[1]) < _FEWEST * len(groups):
            continue
        with ir.InsertionPoint(op), op.operation.location:
            quotient = _divide(op, groups)
        op.operation.results[0].replace_all_uses_with(quotient)
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


# Which registers are equal.


def groups_of_equals(value: ir.Value) -> list[list[int]]:
    """Return the registers of a vector, those together that hold one number by construction."""
    groups: dict[Hashable, list[int]] = {}
    for register, key in enumerate(_keys(value)):
        groups.setdefault(key, []).append(register)
    return list(groups.values())


def _keys(value: ir.Value) -> Sequence[Hashable]:
    """Return a key for each register; registers with the same key are equal."""
    op: Any = value.owner.opview if isinstance(value.owner, ir.Operation) else value.owner
    if isinstance(op, ir.OpView):
        read = _KEYS.get(op.operation.name)
        if read is not None:
            return read(op)
        if op.operation.name.startswith(("arith.", "math.")) and op.operation.operands:
            columns = zip(*(_keys(v) for v in op.operation.operands), strict=True)
            return [(value, *column) for column in columns]
    count = emit.registers_of(value) if emit.is_vector(value.type) else 1
    return [(value, i) for i in range(count)]


def _broadcast_keys(op: Any) -> Sequence[Hashable]:
    held = _keys(op.operation.operands[0])
    return list(held) * (emit.registers_of(op.operation.results[0]) // len(held))


def _shuffle_keys(op: Any) -> Sequence[Hashable]:
    held = [key for value in op.operation.operands for key in _keys(value)]
    result: ir.Value = op.operation.results[0]
    mask: Sequence[int] = op.operation.attributes["mask"]
    return [
        held[index] if index >= 0 else (result, register) for register, index in enumerate(mask)
    ]


def _slice_keys(op: Any) -> Sequence[Hashable]:
    (start,) = (int(ir.IntegerAttr(i).value) for i in op.operation.attributes["offsets"])
    count = emit.registers_of(op.operation.results[0])
    return _keys(op.operation.operands[0])[start : start + count]


def _element_keys(op: Any) -> Sequence[Hashable]:
    return [key for value in op.operation.operands for key in _keys(value)]


def _constant_keys(op: Any) -> Sequence[Hashable]:
    value = op.operation.attributes["value"]
    result: ir.Value = op.operation.results[0]
    if not emit.is_vector(result.type):
        return [(result, 0)]
    if value.is_splat:
        return [(result, 0)] * emit.registers_of(result)
    return [(result, i) for i in range(emit.registers_of(result))]


_KEYS: dict[str, Callable[[Any], Sequence[Hashable]]] = {
    "arith.constant": _constant_keys,
    "vector.broadcast": _broadcast_keys,
    "vector.extract_strided_slice": _slice_keys,
    "vector.from_elements": _element_keys,
    "vector.shuffle": _shuffle_keys,
}


# Dividing.


def _divide(op: ir.OpView, groups: Sequence[Sequence[int]]) -> ir.Value:
    """Build the quotient of a division whose divisor's registers fall into `groups`."""
    x, divisor = op.operation.operands
    dividends = [Lanes(emit.shuffle(x, group)) for group in groups]
    divisors = [Lanes(emit.extract(divisor, group[0])) for group in groups]
    reciprocals = [1.0 / s for s in divisors]
    safe: ir.Value | None = None
    for dividend, s in zip(dividends, divisors, strict=True):
        safe = emit.both(safe, emit.both(_is_divisor(s), _are_dividends(dividend, s)))
    assert safe is not None  # a vector is never empty
    choice: Any = scf.IfOp(safe, [x.type], has_else=True)
    with ir.InsertionPoint(choice.then_block):
        parts = map(_corrected, dividends, divisors, reciprocals)
        whole = emit.concatenate([part.value for part in parts])
        order = [register for group in groups for register in group]
        scf.YieldOp([emit.shuffle(whole, sorted(range(len(order)), key=order.__getitem__))])
    with ir.InsertionPoint(choice.else_block):
        scf.YieldOp([arith.divf(x, divisor)])
    return cast("ir.Value", choice.results[0])


def _corrected(x: Lanes, s: Lanes, r: Lanes) -> Lanes:
    """Return a vector divided by one number, given its reciprocal."""
    count = emit.registers_of(x.value)
    wide_s, wide_r, negative_r = (Lanes(emit.splat(v.value, count)) for v in (s, r, -r))
    q0 = x * wide_r
    return fma(fma(q0, wide_s, -x), negative_r, q0)


def _is_divisor(s: Lanes) -> ir.Value:
    return arith.andi(s.ge(_LEAST_S).value, s.le(_MOST_S).value)


def _are_dividends(x: Lanes, s: Lanes) -> ir.Value:
    """Return whether each x is zero or as large and as small as it must be.

    Without their sign floats are in the order of their bits; less 1, zero is the largest.
    """
    least = (s * _LEAST_QUOTIENT).binary("arith.maxnumf", _LEAST_X)
    most = (s * _MOST_QUOTIENT).binary("arith.minnumf", _MOST_X)
    magnitudes = _magnitude(x)
    smallest = _combined("arith.minui", magnitudes - 1)
    largest = _combined("arith.maxui", magnitudes)
    return emit.both(
        emit.compare("uge", smallest, (_magnitude(least) - 1).value),
        emit.compare("ule", largest, _magnitude(most).value),
    )


def _magnitude(x: Lanes) -> Lanes:
    bits = Lanes(emit.bitcast(x.value, emit.integer(32)))
    return bits + bits


def _combined(name: str, x: Lanes) -> ir.Value:
    """Combine all registers of a vector by an op into a scalar."""
    first, *rest = (Lanes(value) for value in emit.elements(x.value))
    for other in rest:
        first = first.binary(name, other)
    return first.value
