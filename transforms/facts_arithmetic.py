"""Facts of integer arithmetic: what `facts.Facts` of operands say about results.

Every function takes the facts of operands of one shape and, where it matters, the width of their
type; integers wrap at it. What makes division and comparison say anything of runs is one argument:
a part of a run that begins at a multiple of its (power of two) length g contains no multiple of g
but its first element, so it crosses neither a multiple of a divisor nor a bound that g divides.
That argument needs division that rounds down, or operands known not to be negative.
"""

from __future__ import annotations

from dataclasses import replace

from tiledsl.transforms.facts import MOST, Facts, join, power_of_two_in, splat
from tiledsl.transforms.interval import Interval

Predicate = str
"""As of `arith.cmpi`: eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge."""

SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def swapped(predicate: Predicate) -> Predicate:
    """Return the predicate p' with a p b == b p' a."""
    return predicate[:-2] + SWAPPED.get(predicate[-2:], predicate[-2:])


def negated(predicate: Predicate) -> Predicate:
    """Return the predicate p' with a p b == not a p' b."""
    if predicate in ("eq", "ne"):
        return "ne" if predicate == "eq" else "eq"
    return predicate[:-2] + NEGATED[predicate[-2:]]


def range_of(a: Facts, width: int) -> Interval:
    """Return the range of `a`: the known one, or that of its type."""
    return a.range or Interval.of_width(width)


def elementwise(*operands: Facts, range: Interval | None = None, divisor: int = 1) -> Facts:
    """Return the facts of any function of each element: equal operands give equal results."""
    constancy = operands[0].constancy
    for other in operands[1:]:
        constancy = tuple(map(min, constancy, other.constancy))
    return Facts.make(operands[0].shape, constancy=constancy, range=range, divisor=divisor)


def _sum(a: Facts, b: Facts, runs: list[int], range: Interval) -> Facts:
    return Facts.make(
        a.shape,
        contiguity=runs,
        divisibility=[min(a.starts(i, c), b.starts(i, c)) for i, c in enumerate(runs)],
        constancy=list(map(min, a.constancy, b.constancy)),
        divisor=min(a.divisor, b.divisor),
        range=range,
    )


def _runs_of_sum(a: Facts, b: Facts) -> list[int]:
    one = map(min, a.contiguity, b.constancy)
    return list(map(max, one, map(min, a.constancy, b.contiguity)))


def add(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of a + b."""
    return _sum(a, b, _runs_of_sum(a, b), (range_of(a, width) + range_of(b, width)).wrapped(width))


def subtract(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of a - b."""
    runs = list(map(min, a.contiguity, b.constancy))
    return _sum(a, b, runs, (range_of(a, width) - range_of(b, width)).wrapped(width))


def add_pointer(pointer: Facts, offset: Facts) -> Facts:
    """Return the facts of a pointer moved by `offset` elements of `pointer.step` bytes."""
    size = pointer.step
    runs = _runs_of_sum(pointer, offset)
    return Facts.make(
        pointer.shape,
        contiguity=runs,
        divisibility=[
            min(pointer.starts(i, c), offset.starts(i, c) * size) for i, c in enumerate(runs)
        ],
        constancy=list(map(min, pointer.constancy, offset.constancy)),
        divisor=min(pointer.divisor, offset.divisor * size),
        step=size,
    )


def multiply(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of a * b."""
    if b.value == 1:
        return a
    if a.value == 1:
        return b
    product = (range_of(a, width) * range_of(b, width)).wrapped(width)
    return elementwise(a, b, range=product, divisor=min(MOST, a.divisor * b.divisor))


def floor_divide(a: Facts, b: Facts, width: int, signed: bool = True) -> Facts:
    """Return the facts of a // b rounded down; division by zero gives 0."""
    over, by = range_of(a, width), range_of(b, width)
    if not signed:
        over, by = over.unsigned(width), by.unsigned(width)
    if by.value == 1:
        return a
    quotient = over.floordiv(by)
    quotient = quotient.wrapped(width) if signed else quotient.signed(width)
    result = elementwise(a, b, range=quotient, divisor=_divisor_of_quotient(a, by))
    return _with_constant_parts(result, _uncrossed(a, b)) if by.lo >= 0 else result


def _uncrossed(a: Facts, b: Facts) -> list[int]:
    """Return the parts of a's runs, along each dimension, that cross no multiple of b > 0."""
    return [min(a.aligned_run(i), b.constancy[i], b.divisor) for i in range(a.rank)]


def _with_constant_parts(a: Facts, parts: list[int]) -> Facts:
    return replace(a, constancy=tuple(map(max, a.constancy, parts)))


def _divisor_of_quotient(a: Facts, by: Interval) -> int:
    """Return what divides a // by, where `by` is one power of two."""
    p = by.value
    if p is None or p <= 0 or p & (p - 1):
        return 1
    known = [a.divisor // p]
    # A run no longer than p that begins at a multiple of p has one quotient, its first element's.
    known += [d // p for c, d in zip(a.contiguity, a.divisibility, strict=True) if c <= p <= d]
    return max(1, *known)


def floor_modulo(a: Facts, b: Facts, width: int, signed: bool = True) -> Facts:
    """Return the facts of the remainder of `floor_divide`; modulo zero gives 0."""
    over, by = range_of(a, width), range_of(b, width)
    if not signed:
        over, by = over.unsigned(width), by.unsigned(width)
    if over.lo >= 0 and over.hi < by.lo:
        return a
    rest = over.floormod(by)
    rest = rest if signed else rest.signed(width)
    parts = _uncrossed(a, b) if by.lo > 0 else [1] * a.rank
    return Facts.make(
        a.shape,
        contiguity=parts,
        divisibility=[min(a.starts(i, g), b.divisor) for i, g in enumerate(parts)],
        constancy=list(map(min, a.constancy, b.constancy)),
        divisor=min(a.divisor, b.divisor),
        range=rest,
    )


def _with_positive(b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of a divisor that is not zero, since dividing by zero is undefined."""
    by = range_of(b, width)
    by = by if signed else by.unsigned(width)
    return b.with_range(Interval(1, by.hi)) if by.lo == 0 < by.hi else b


def truncating_divide(a: Facts, b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of a / b rounded toward zero, undefined for b == 0."""
    b = _with_positive(b, width, signed)
    if not signed or (range_of(a, width).lo >= 0 and range_of(b, width).lo >= 0):
        return floor_divide(a, b, width, signed)
    quotient = range_of(a, width).truncdiv(range_of(b, width)).wrapped(width)
    return elementwise(a, b, range=quotient)


def truncating_remainder(a: Facts, b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of the remainder of `truncating_divide`."""
    b = _with_positive(b, width, signed)
    if not signed or (range_of(a, width).lo >= 0 and range_of(b, width).lo >= 0):
        return floor_modulo(a, b, width, signed)
    rest = range_of(a, width).truncmod(range_of(b, width))
    return elementwise(a, b, range=rest, divisor=min(a.divisor, b.divisor))


def shift_left(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of a << b, undefined for counts that are not less than the width."""
    count = b.value
    if count is not None and 0 <= count < width:
        return multiply(a, Facts.constant(1 << count, a.shape), width)
    counts = Interval(0, width - 1).meet(range_of(b, width))
    shifted = range_of(a, width).left_shift(counts).wrapped(width)
    return elementwise(a, b, range=shifted, divisor=a.divisor)


def shift_right(a: Facts, b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of a >> b, undefined for counts that are not less than the width."""
    count = b.value
    if count is not None and 0 <= count < width:
        return floor_divide(a, Facts.constant(1 << count, a.shape), width, signed)
    counts = Interval(0, width - 1).meet(range_of(b, width))
    over = range_of(a, width)
    over = over if signed else over.unsigned(width)
    shifted = over.right_shift(counts)
    return elementwise(a, b, range=shifted if signed else shifted.signed(width))


def bit_and(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of the bitwise and."""
    if width == 1:
        return elementwise(a, b, range=range_of(a, 1).minimum(range_of(b, 1)))
    if a.value is not None:
        a, b = b, a
    found = range_of(a, width).bit_and(range_of(b, width)) or Interval.of_width(width)
    result = elementwise(a, b, range=found, divisor=max(a.divisor, b.divisor))
    mask = b.value
    if mask is None or result.value is not None:
        return result
    if mask == -1:
        return a
    if mask % 2 == 0:
        zeros = power_of_two_in(mask)
        return _with_constant_parts(result, [min(a.aligned_run(i), zeros) for i in range(a.rank)])
    ones = power_of_two_in(mask + 1)
    parts = [min(a.aligned_run(i), ones) for i in range(a.rank)]
    return Facts.make(
        a.shape,
        contiguity=parts,
        divisibility=[a.starts(i, g) for i, g in enumerate(parts)],
        constancy=result.constancy,
        divisor=a.divisor,
        range=found,
    )


def bit_or(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of the bitwise or."""
    if width == 1:
        return elementwise(a, b, range=range_of(a, 1).maximum(range_of(b, 1)))
    return _merge(a, b, width, range_of(a, width).bit_or(range_of(b, width)))


def bit_xor(a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of the bitwise exclusive or."""
    if a.value is not None and b.value is not None:
        return Facts.constant(a.value ^ b.value, a.shape)
    if width == 1:
        return elementwise(a, b, range=Interval(0, 1))
    return _merge(a, b, width, range_of(a, width).bit_xor(range_of(b, width)))


def _merge(a: Facts, b: Facts, width: int, found: Interval | None) -> Facts:
    """Return the facts of an or or an exclusive or."""
    if a.value is not None and b.value is not None:
        return Facts.constant(a.value | b.value, a.shape)
    for high, low in ((a, b), (b, a)):
        bound = range_of(low, width)
        if bound.lo >= 0 and bound.hi < high.divisor:
            return add(a, b, width)  # no bit is set in both
    parts = [
        max(min(a.aligned_run(i), b.constancy[i], b.divisor),
            min(b.aligned_run(i), a.constancy[i], a.divisor))
        for i in range(a.rank)
    ]  # fmt: skip
    return Facts.make(
        a.shape,
        contiguity=parts,
        divisibility=[min(a.starts(i, g), b.starts(i, g)) for i, g in enumerate(parts)],
        constancy=list(map(min, a.constancy, b.constancy)),
        divisor=min(a.divisor, b.divisor),
        range=found or Interval.of_width(width),
    )


def compare(predicate: Predicate, a: Facts, b: Facts, width: int) -> Facts:
    """Return the facts of a comparison, a bool."""
    left, right = _read(a, predicate, width), _read(b, predicate, width)
    known = decide(predicate, left, right)
    if known is not None:
        return Facts.constant(int(known), a.shape)
    result = elementwise(a, b, range=Interval(0, 1))
    both = list(map(min, map(a.aligned_run, range(a.rank)), map(b.aligned_run, range(a.rank))))
    result = _with_constant_parts(result, both)
    if predicate in ("eq", "ne"):
        return result
    low, high = (a, b) if predicate[-2:] in ("lt", "ge") else (b, a)  # low < high, or its opposite
    below = [min(low.aligned_run(i), high.constancy[i], high.divisor) for i in range(a.rank)]
    result = _with_constant_parts(result, below)
    if low.value is None:
        return result
    next_ = power_of_two_in(low.value + 1)  # low < high is low + 1 <= high
    return _with_constant_parts(result, [min(high.aligned_run(i), next_) for i in range(a.rank)])


def _read(a: Facts, predicate: Predicate, width: int) -> Interval:
    """Return the range of `a` as the predicate reads it."""
    found = range_of(a, width)
    if predicate[0] == "u":
        return found.unsigned(width)
    return -found if width == 1 and predicate[0] == "s" else found


def decide(predicate: Predicate, a: Interval, b: Interval) -> bool | None:
    """Return whether the comparison holds for all values of two ranges, or for none, or None."""
    match predicate[-2:]:
        case "eq" | "ne":
            equal: bool | None = None
            if a.hi < b.lo or b.hi < a.lo:
                equal = False
            elif a.value is not None and a.value == b.value:
                equal = True
            return equal if equal is None or predicate == "eq" else not equal
        case "lt":
            return True if a.hi < b.lo else False if a.lo >= b.hi else None
        case "le":
            return True if a.hi <= b.lo else False if a.lo > b.hi else None
        case "gt":
            return decide("slt", b, a)
        case _:
            return decide("sle", b, a)


def refine(a: Facts, predicate: Predicate, b: Facts, width: int) -> Facts:
    """Return the facts of `a` where `a predicate b` is known to hold."""
    range_, bound = range_of(a, width), range_of(b, width)
    if width == 1:
        return a
    if predicate[0] == "u":
        if bound.lo < 0 or predicate[-2:] in ("gt", "ge"):
            return a
        return a.with_range(Interval(0, bound.hi - (predicate == "ult")).meet(range_))
    whole = Interval.of_width(width)
    match predicate:
        case "eq":
            said = bound
            a = a.with_divisor(b.divisor) if a.rank == 0 else a
        case "ne":
            ends = (range_.lo + (range_.lo == bound.value), range_.hi - (range_.hi == bound.value))
            said = Interval(*ends) if ends[0] <= ends[1] else range_
        case "slt":
            said = Interval(whole.lo, max(whole.lo, bound.hi - 1))
        case "sle":
            said = Interval(whole.lo, bound.hi)
        case "sgt":
            said = Interval(min(whole.hi, bound.lo + 1), whole.hi)
        case _:
            said = Interval(bound.lo, whole.hi)
    return a.with_range(range_.meet(said))


def smaller(a: Facts, b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of the minimum."""
    return _extreme(a, b, width, signed, least=True)


def larger(a: Facts, b: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of the maximum."""
    return _extreme(a, b, width, signed, least=False)


def _extreme(a: Facts, b: Facts, width: int, signed: bool, least: bool) -> Facts:
    predicate = "sle" if signed else "ule"
    left, right = _read(a, predicate, width), _read(b, predicate, width)
    known = decide(predicate, left, right)
    if known is not None:
        return a if known == least else b
    found = left.minimum(right) if least else left.maximum(right)
    if width == 1:
        found = Interval(0, 1)
    elif not signed:
        found = found.signed(width)
    return elementwise(a, b, range=found, divisor=min(a.divisor, b.divisor))


def select(condition: Facts, a: Facts, b: Facts) -> Facts:
    """Return the facts of `a` where the condition holds, else `b`."""
    if condition.value is not None:
        return a if condition.value else b
    if condition.rank != a.rank:
        condition = splat(condition, a.shape)
    either = join(a, b)
    runs = list(map(min, either.contiguity, condition.constancy))
    return Facts.make(
        a.shape,
        contiguity=runs,
        divisibility=[min(a.starts(i, c), b.starts(i, c)) for i, c in enumerate(runs)],
        constancy=list(map(min, either.constancy, condition.constancy)),
        divisor=either.divisor,
        range=either.range,
        step=a.step,
    )


def extend(a: Facts, width: int, signed: bool) -> Facts:
    """Return the facts of `a`, of `width` bits, extended to more."""
    found = range_of(a, width)
    if not signed:
        return a.with_range(found.unsigned(width))
    return elementwise(a, range=-found) if width == 1 else a.with_range(found)


def truncate(a: Facts, old: int, width: int) -> Facts:
    """Return the facts of the low `width` bits of `a`, which has `old`."""
    if a.value is not None:
        low = a.value % (1 << width)
        return Facts.constant(Interval.exactly(low).signed(width).lo, a.shape)
    most = 1 << (width - 1)
    runs = [min(c, most) for c in a.contiguity]
    return Facts.make(
        a.shape,
        contiguity=runs,
        divisibility=[a.starts(i, c) for i, c in enumerate(runs)],
        constancy=a.constancy,
        divisor=a.divisor,
        range=range_of(a, old).wrapped(width),
        step=a.step,
    )
