"""Linear forms: an integer as a sum of multiples of others and bounds of what is left.

Intervals alone cannot show that i + 31 < n inside a loop to n: neither side has useful bounds,
their difference does. A form keeps the unknown numbers by name, so that they cancel. No MLIR here:
a name is any hashable value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tiledsl.transforms.interval import Interval


@dataclass(frozen=True)
class Linear:
    """A number that lies in: the sum of `terms` plus something from `low` to `high`.

    Attributes:
        terms: Factor by name; none is zero.
        low: Least value of the rest.
        high: Greatest value of the rest.
    """

    terms: Mapping[Hashable, Fraction] = field(default_factory=dict[Hashable, Fraction])
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)

    @staticmethod
    def named(name: Hashable) -> Linear:
        """Return the form of the number of that name."""
        return Linear({name: Fraction(1)})

    @staticmethod
    def within(interval: Interval) -> Linear:
        """Return the form of a number of which only bounds are known."""
        return Linear({}, Fraction(interval.lo), Fraction(interval.hi))

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for name, factor in other.terms.items():
            terms[name] = terms.get(name, Fraction(0)) + factor
        kept = {name: factor for name, factor in terms.items() if factor}
        return Linear(kept, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.times(Fraction(-1))

    def times(self, factor: Fraction) -> Linear:
        """Return the form of this number times a known one."""
        terms = {name: of * factor for name, of in self.terms.items()} if factor else {}
        ends = sorted((self.low * factor, self.high * factor))
        return Linear(terms, ends[0], ends[1])

    def replaced(self, name: Hashable, form: Linear) -> Linear:
        """Return this form with `form` in the place of a number."""
        rest = Linear({n: f for n, f in self.terms.items() if n != name}, self.low, self.high)
        return rest + form.times(self.terms[name])

    def floordiv(self, divisor: int, divisor_of: Callable[[Hashable], int]) -> Linear:
        """Return the form of this integer divided by a positive one, rounded down.

        Args:
            divisor: By what.
            divisor_of: What is known to divide the number of a name.
        """
        whole = all(
            (factor * divisor_of(name) / divisor).denominator == 1
            for name, factor in self.terms.items()
        )
        scaled = self.times(Fraction(1, divisor))
        if whole:
            # The named part divides evenly, so only the rest is rounded.
            return Linear(scaled.terms, Fraction(scaled.low // 1), Fraction(scaled.high // 1))
        return Linear(scaled.terms, scaled.low - Fraction(divisor - 1, divisor), scaled.high)

    def least(self, range_of: Callable[[Hashable], Interval]) -> Fraction:
        """Return a lower bound, given bounds of the named numbers."""
        found = self.low
        for name, factor in self.terms.items():
            bounds = range_of(name)
            found += factor * (bounds.lo if factor > 0 else bounds.hi)
        return found
