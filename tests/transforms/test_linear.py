"""Linear forms against the integers they stand for."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.transforms.interval import Interval
from tiledsl.transforms.linear import Linear

NAMES = ("n", "m")


@st.composite
def numbers(draw: st.DrawFn) -> tuple[Linear, int, dict[str, int]]:
    """A form, an integer that it stands for, and the values of the names."""
    values = {name: 4 * draw(st.integers(-9, 9)) for name in NAMES}
    form, number = Linear(), 0
    for _ in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(["name", "bounds", "subtract", "times", "floordiv"])):
            case "name":
                name = draw(st.sampled_from(NAMES))
                form, number = form + Linear.named(name), number + values[name]
            case "bounds":
                rest, slack = draw(st.integers(-9, 9)), draw(st.integers(0, 5))
                form += Linear.within(Interval(rest - slack, rest + slack))
                number += rest
            case "subtract":
                name = draw(st.sampled_from(NAMES))
                form, number = Linear.named(name) - form, values[name] - number
            case "times":
                factor = draw(st.integers(-3, 3))
                form, number = form.times(Fraction(factor)), number * factor
            case _:
                by = draw(st.integers(1, 8))
                form, number = form.floordiv(by, lambda _: 4), number // by
    return form, number, values


@settings(max_examples=200, deadline=None)
@given(numbers(), st.integers(0, 9))
def test_a_form_bounds_its_number(made: tuple[Linear, int, dict[str, int]], slack: int):
    form, number, values = made

    def bounds(name: object) -> Interval:
        value = values[cast("str", name)]
        return Interval(value - slack, value + slack)

    assert form.least(bounds) <= number
    assert form.times(Fraction(-1)).least(bounds) <= -number


def test_a_name_cancels_where_it_is_on_both_sides():
    n = Linear.named("n")
    difference = n + Linear.within(Interval(1, 3)) - n
    assert difference == Linear({}, Fraction(1), Fraction(3))


def test_a_ceiling_of_what_divides_is_exact():
    n = Linear.named("n")
    blocks = (n + Linear.within(Interval.exactly(31))).floordiv(32, lambda _: 32)
    assert blocks.times(Fraction(32)) == n
    loose = (n + Linear.within(Interval.exactly(31))).floordiv(32, lambda _: 16)
    assert loose.times(Fraction(32)) != n


def test_a_number_is_replaced_by_what_bounds_it():
    form = Linear.named("i").times(Fraction(2)) + Linear.within(Interval.exactly(1))
    bound = Linear.named("n") - Linear.within(Interval.exactly(4))
    expected = Linear.named("n").times(Fraction(2)) - Linear.within(Interval.exactly(7))
    assert form.replaced("i", bound) == expected
