"""Intervals of integers: the range that a value is known to lie in.

Bounds are ideal integers, of any size. An operation on intervals gives the range of the *ideal*
result; `wrapped` then says what is left of it when the result is stored at a width: all of it where
it fits, nothing (the whole range of the type) where it may wrap, since wrapping scatters values.

Values are read as signed two's complement; a one-bit value is a truth value and reads as 0 or 1.
`unsigned` and `signed` change the reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Interval:
    """The integers lo, ..., hi; lo <= hi."""

    lo: int
    hi: int

    @staticmethod
    def exactly(value: int) -> Interval:
        """Return the interval that holds `value` alone."""
        return Interval(value, value)

    @staticmethod
    @cache
    def of_width(width: int) -> Interval:
        """Return the range of a type of `width` bits."""
        return Interval(0, 1) if width == 1 else Interval(-(1 << width - 1), (1 << width - 1) - 1)

    @staticmethod
    @cache
    def of_unsigned(width: int) -> Interval:
        """Return the range of an unsigned type of `width` bits."""
        return Interval(0, (1 << width) - 1)

    @property
    def value(self) -> int | None:
        """The only value, if there is only one."""
        return self.lo if self.lo == self.hi else None

    def __contains__(self, value: int) -> bool:
        return self.lo <= value <= self.hi

    def covers(self, other: Interval) -> bool:
        """Whether every value of `other` is in this interval."""
        return self.lo <= other.lo and other.hi <= self.hi

    def union(self, other: Interval) -> Interval:
        """Return the least interval that holds both."""
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def meet(self, other: Interval) -> Interval:
        """Return what both hold; where that is nothing (dead code, a broken promise), this one."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return Interval(lo, hi) if lo <= hi else self

    def multiples(self, of: int) -> Interval:
        """Return the least interval that holds this one's multiples of `of`, if it has any."""
        lo, hi = -(-self.lo // of) * of, self.hi // of * of
        return Interval(lo, hi) if lo <= hi else self

    def wrapped(self, width: int) -> Interval:
        """Return the range of the ideal result stored in `width` bits."""
        whole = Interval.of_width(width)
        return self if whole.covers(self) else whole

    def unsigned(self, width: int) -> Interval:
        """Return the range of the same bits read as unsigned."""
        if self.lo >= 0:
            return self
        if self.hi < 0:
            return Interval(self.lo + (1 << width), self.hi + (1 << width))
        return Interval.of_unsigned(width)

    def signed(self, width: int) -> Interval:
        """Return the range of the same bits, read as unsigned so far, read as signed."""
        whole = Interval.of_width(width)
        if self.hi <= whole.hi:
            return self
        if self.lo > whole.hi:
            return Interval(self.lo - (1 << width), self.hi - (1 << width))
        return whole

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lo + other.lo, self.hi + other.hi)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lo - other.hi, self.hi - other.lo)

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __mul__(self, other: Interval) -> Interval:
        return _hull([a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)])

    def floordiv(self, other: Interval) -> Interval:
        """Return the range of quotients rounded down; division by zero gives 0."""
        ends = [a // b for a in (self.lo, self.hi) for b in other.divisors()]
        return _hull([*ends, 0] if 0 in other else ends)

    def truncdiv(self, other: Interval) -> Interval:
        """Return the range of quotients rounded toward zero; a divisor is never zero."""
        ends = [_truncated(a, b) for a in (self.lo, self.hi) for b in other.divisors()]
        return _hull(ends or [0])

    def floormod(self, other: Interval) -> Interval:
        """Return the range of remainders with the divisor's sign; modulo zero gives 0."""
        if other.lo > self.hi and self.lo >= 0:
            return self
        low = other.lo + 1 if other.lo < 0 else 0
        high = other.hi - 1 if other.hi > 0 else 0
        if self.lo >= 0 and low == 0:
            high = min(high, self.hi)
        return Interval(low, high)

    def truncmod(self, other: Interval) -> Interval:
        """Return the range of remainders with the dividend's sign; a divisor is never zero."""
        most = max(abs(other.lo), abs(other.hi), 1) - 1
        low = max(self.lo, -most) if self.lo < 0 else 0
        high = min(self.hi, most) if self.hi > 0 else 0
        return Interval(low, high)

    def divisors(self) -> list[int]:
        """Return the values among which the extreme quotients by this interval are found."""
        return sorted({b for b in (self.lo, self.hi, -1, 1) if b in self and b != 0})

    def minimum(self, other: Interval) -> Interval:
        """Return the range of the smaller of two values."""
        return Interval(min(self.lo, other.lo), min(self.hi, other.hi))

    def maximum(self, other: Interval) -> Interval:
        """Return the range of the larger of two values."""
        return Interval(max(self.lo, other.lo), max(self.hi, other.hi))

    def left_shift(self, count: Interval) -> Interval:
        """Return the range of values times a power of two; counts are not negative."""
        return self * Interval(1 << count.lo, 1 << count.hi)

    def right_shift(self, count: Interval) -> Interval:
        """Return the range of values shifted right, rounding down; counts are not negative."""
        return self.floordiv(Interval(1 << count.lo, 1 << count.hi))

    def bit_and(self, other: Interval) -> Interval | None:
        """Return the range of the bitwise and, or None where nothing is known."""
        bounds = [side.hi for side in (self, other) if side.lo >= 0]
        return Interval(0, min(bounds)) if bounds else None

    def bit_or(self, other: Interval) -> Interval | None:
        """Return the range of the bitwise or, or None where nothing is known."""
        found = self.bit_xor(other)
        return found and Interval(max(self.lo, other.lo), found.hi)

    def bit_xor(self, other: Interval) -> Interval | None:
        """Return the range of the bitwise exclusive or, or None where nothing is known."""
        if self.lo < 0 or other.lo < 0:
            return None
        return Interval(0, (1 << max(self.hi, other.hi).bit_length()) - 1)


def _hull(values: list[int]) -> Interval:
    return Interval(min(values), max(values))


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient
