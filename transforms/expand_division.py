"""Turn division that rounds down into shifts, masks and the division that machines have.

`tile.floordiv` and `tile.floormod` are what NumPy computes, whatever the operands: rounded toward
negative infinity, 0 for a divisor of 0, wrapping where the quotient does not fit. `arith` has
division that rounds toward zero and is undefined in those two cases. Most divisions in kernels are
of indices by sizes, and ranges prove that neither case nor the rounding matters; powers of two need
no proof, since shifting right rounds down.

Before: any valid module at the tile level.
After: no `tile.floordiv` or `tile.floormod`. No `arith` division in their place is undefined for
any operands. Runs that rounding down is known to keep are hinted where the arithmetic hides them.

    %q = "tile.floordiv"(%i, %c32) {signed = true} : (tensor<64xi32>, tensor<64xi32>) -> ...
    %r = "tile.floormod"(%i, %n) {signed = true} : ...                 // %i >= 0, %n > 0
becomes
    %q = arith.shrsi %i, %c5 : tensor<64xi32>
    %r = arith.remui %i, %n : tensor<64xi32>
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import bit_width, is_tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.facts import Facts
from tiledsl.transforms.facts_arithmetic import elementwise, range_of
from tiledsl.transforms.interval import Interval
from tiledsl.transforms.lanes import Lanes, select

Division = tile.FloorDivOp | tile.FloorModOp


def expand_division(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    found = [op for op in operations(module.operation) if isinstance(op, Division)]
    facts = AxisFacts(module)
    # All facts first: an analysis does not outlive the ops that it was made of.
    known = [(facts.of(op.lhs), facts.of(op.rhs), facts.of(op.result)) for op in found]
    for op, (left, right, result) in zip(found, known, strict=True):
        with ir.InsertionPoint(op.operation), op.operation.location:
            value = _expand(op, left, right)
            if not _is_plain(op, left, right):
                value = _hinted(value, result, elementwise(left, right))
        op.result.replace_all_uses_with(value.value)
        op.operation.erase()


def _ranges(op: Division, left: Facts, right: Facts) -> tuple[Interval, Interval]:
    """Return the ranges of dividend and divisor as the op reads them."""
    width = bit_width(op.result.type)
    a, b = range_of(left, width), range_of(right, width)
    return (a, b) if _is_signed(op) else (a.unsigned(width), b.unsigned(width))


def _is_signed(op: Division) -> bool:
    return op.signed and bit_width(op.result.type) > 1


def _power(divisor: Interval) -> int | None:
    """Return the exponent if the divisor is one power of two."""
    value = divisor.value
    return value.bit_length() - 1 if value and value > 0 and not value & (value - 1) else None


def _is_plain(op: Division, left: Facts, right: Facts) -> bool:
    """Whether one op does it, from which axis facts can be read as from the division."""
    a, b = _ranges(op, left, right)
    return _power(b) is not None or (b.lo > 0 and (not _is_signed(op) or a.lo >= 0))


def _expand(op: Division, left: Facts, right: Facts) -> Lanes:
    x, y = Lanes(op.lhs), Lanes(op.rhs)
    a, b = _ranges(op, left, right)
    divides = isinstance(op, tile.FloorDivOp)
    power = _power(b)
    if b.value == 0:
        return x.constant(0)
    if power is not None:
        return _by_power_of_two(x, power, divides, _is_signed(op))
    if not _is_signed(op) or (a.lo >= 0 and b.lo >= 0):
        return _unsigned(x, y, b, divides)
    return _signed(x, y, a, b, divides)


def _by_power_of_two(x: Lanes, power: int, divides: bool, signed: bool) -> Lanes:
    if not divides:
        return x & ((1 << power) - 1)
    if power == 0:
        return x
    return x.shr_s(power) if signed else x.shr_u(power)


def _unsigned(x: Lanes, y: Lanes, divisor: Interval, divides: bool) -> Lanes:
    """Divide what is not negative, or read so."""
    if 0 not in divisor:
        return x.binary("arith.divui" if divides else "arith.remui", y)
    zero = y.eq(0)
    safe = select(zero, 1, y)
    if not divides:
        return x.binary("arith.remui", safe)  # modulo 1 gives 0, as modulo 0 must
    return select(zero, 0, x.binary("arith.divui", safe))


def _signed(x: Lanes, y: Lanes, a: Interval, b: Interval, divides: bool) -> Lanes:
    """Divide toward zero, then correct what should have been rounded down."""
    least = Interval.of_width(bit_width(x.type)).lo
    if b.value == -1:
        return 0 - x if divides else x.constant(0)
    zero = y.eq(0) if 0 in b else None
    bad = zero
    if -1 in b and least in a:
        # The least value divided by -1 wraps to itself, which is what dividing it by 1 gives.
        wraps = x.eq(least) & y.eq(-1)
        bad = wraps if bad is None else bad | wraps
    safe = y if bad is None else select(bad, 1, y)
    quotient = x.binary("arith.divsi", safe)
    rest = x - quotient * safe
    down = rest.lt(0) if b.lo >= 0 else rest.ne(0) & (rest ^ safe).lt(0)
    if not divides:
        return select(down, rest + safe, rest)  # of a divisor replaced by 1 the rest is 0
    floored = select(down, quotient - 1, quotient)
    return floored if zero is None else select(zero, 0, floored)


def _hinted(value: Lanes, known: Facts, evident: Facts) -> Lanes:
    """Hint runs and constancy that follow from rounding down alone."""
    hidden = known.contiguity != evident.contiguity or known.constancy != evident.constancy
    if not hidden or not is_tile(value.type):
        return value
    made = tile.HintOp.build(
        value.value,
        results=[value.type],
        contiguity=list(known.contiguity),
        divisibility=list(known.divisibility),
        constancy=list(known.constancy),
    )
    return Lanes(made.result)
