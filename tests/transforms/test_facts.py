"""Claims about tiles against the tiles themselves, on random chains of operations.

A `Case` is a concrete array of integers with the facts that were derived for it, never by looking at
the array; `check` looks for an element that contradicts a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.transforms import facts as shapes
from tiledsl.transforms import facts_arithmetic as numbers
from tiledsl.transforms.facts import Facts
from tiledsl.transforms.interval import Interval

Array = np.ndarray[Any, np.dtype[Any]]
SHAPES = [(16,), (4, 8), (8, 2, 2), (1, 16), (32, 1)]


@dataclass(frozen=True)
class Case:
    """An array of ideal integers within `width` bits (signed; bools 0 or 1), and its facts."""

    array: Array
    facts: Facts
    width: int


def stored(values: Array, width: int) -> Array:
    """Return ideal integers as `width` bits hold them."""
    bits = values & ((1 << width) - 1)
    if width == 1:
        return bits
    return np.where(bits >> (width - 1), bits - (1 << width), bits)


def blocks(array: Array, axis: int, size: int) -> Array:
    """Return the aligned blocks along an axis: (block, place in the block)."""
    return np.moveaxis(array, axis, -1).reshape(-1, size)


def check(case: Case) -> None:
    """Assert that every claim holds of every element."""
    array, facts = case.array, case.facts
    assert facts.shape == array.shape
    assert all(x % facts.divisor == 0 for x in array.flat), facts
    if facts.range is not None:
        assert all(x in facts.range for x in array.flat), facts
    for axis in range(array.ndim):
        equal = blocks(array, axis, facts.constancy[axis])
        assert (equal == equal[:, :1]).all(), (facts, axis)
        runs = blocks(array, axis, facts.contiguity[axis])
        assert (runs[:, 0] % facts.divisibility[axis] == 0).all(), (facts, axis)
        assert ((np.diff(runs, axis=1) - facts.step) % (256 * facts.step) == 0).all(), (facts, axis)
        part = facts.aligned_run(axis)
        aligned = blocks(array, axis, part)
        assert part == 1 or (aligned[:, 0] % (part * facts.step) == 0).all(), (facts, axis)
        assert (np.diff(aligned, axis=1) == facts.step).all(), (facts, axis)
        for size in {1, part // 2 or 1, part, array.shape[axis]}:
            firsts = blocks(array, axis, size)[:, 0]
            assert (firsts % facts.starts(axis, size) == 0).all(), (facts, axis, size)


@st.composite
def leaves(draw: st.DrawFn, shape: tuple[int, ...], width: int) -> Case:
    """A range along an axis, a splat of a scalar of which something is known, or any values."""
    low = -(1 << (width - 1))
    match draw(st.sampled_from(["range", "range", "splat", "constant", "any"])):
        case "range":
            axis = draw(st.integers(0, len(shape) - 1))
            start = draw(st.sampled_from([0, 0, 1, 8, 16, 64, 96, -4]))
            line = np.arange(start, start + shape[axis], dtype=object)
            facts = shapes.make_range(start, start + shape[axis])
            for other in range(len(shape)):
                if other != axis:
                    line = np.expand_dims(line, other)
                    facts = shapes.expand_dims(facts, other)
            wide = Case(np.broadcast_to(line, shape), shapes.broadcast(facts, shape), 32)
            return Case(stored(wide.array, width), numbers.truncate(wide.facts, 32, width), width)
        case "splat":
            divisor = 1 << draw(st.integers(0, 4))
            value = draw(st.integers(low // divisor, (-low - 1) // divisor)) * divisor
            slack = draw(st.integers(0, 5))
            bounds = Interval(max(low, value - slack), min(-low - 1, value + slack))
            scalar = Facts.make((), divisor=divisor, range=bounds)
            return Case(np.full(shape, value, object), shapes.splat(scalar, shape), width)
        case "constant":
            value = draw(st.sampled_from([0, 1, 2, 3, 4, 7, 8, 12, 16, -1, -4, -8, low]))
            return Case(np.full(shape, value, object), Facts.constant(value, shape), width)
        case _:
            seed = draw(st.integers(0, 99))
            values = np.random.default_rng(seed).integers(low, -low, shape).astype(object)
            return Case(values, Facts.unknown(shape, Interval.of_width(width)), width)


def _floordiv(x: int, y: int) -> int:
    return x // y if y else 0


def _floormod(x: int, y: int) -> int:
    return x % y if y else 0


def _truncdiv(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "bit_and": lambda x, y: x & y,
    "bit_or": lambda x, y: x | y,
    "bit_xor": lambda x, y: x ^ y,
    "shift_left": lambda x, y: x << y,
}
SIGNED: dict[str, Callable[[int, int], int]] = {
    "floor_divide": _floordiv,
    "floor_modulo": _floormod,
    "truncating_divide": _truncdiv,
    "truncating_remainder": lambda x, y: x - y * _truncdiv(x, y),
    "shift_right": lambda x, y: x >> y,
    "smaller": min,
    "larger": max,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}


def _map(function: Callable[[int, int], int], *arrays: Array) -> Array:
    found: Any = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return np.asarray(found, object)


def _unsigned(array: Array, width: int) -> Array:
    return array & ((1 << width) - 1)


def _binary(draw: st.DrawFn, a: Case, b: Case) -> Case | None:
    name = draw(st.sampled_from([*BINARY, *SIGNED]))
    width = a.width
    counts = b.array
    if name.startswith("shift") and not ((counts >= 0) & (counts < width)).all():
        return None
    if name.startswith("truncating") and (counts == 0).any():
        return None
    rule: Any = getattr(numbers, name)
    if name in BINARY:
        found = _map(BINARY[name], a.array, b.array)
        return Case(stored(found, width), rule(a.facts, b.facts, width), width)
    signed = draw(st.booleans())
    x, y = (c.array if signed else _unsigned(c.array, width) for c in (a, b))
    found = _map(SIGNED[name], x, y)
    return Case(stored(found, width), rule(a.facts, b.facts, width, signed), width)


def _comparison(draw: st.DrawFn, a: Case, b: Case) -> Case:
    name = draw(st.sampled_from([*COMPARE]))
    signed = draw(st.booleans())
    x, y = (c.array if signed else _unsigned(c.array, a.width) for c in (a, b))
    predicate = name if name in ("eq", "ne") else ("s" if signed else "u") + name
    found = np.asarray(_map(COMPARE[name], x, y), int).astype(object)
    return Case(found, numbers.compare(predicate, a.facts, b.facts, a.width), 1)


@st.composite
def chains(draw: st.DrawFn, steps: int = 6) -> list[Case]:
    """Cases of one shape and width, and the truth values met on the way, made from each other."""
    shape = draw(st.sampled_from(SHAPES))
    width = draw(st.sampled_from([8, 8, 16, 32]))
    made = [draw(leaves(shape, width)) for _ in range(3)]
    truths: list[Case] = []
    for _ in range(steps):
        a, b = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        match draw(st.sampled_from(["binary"] * 4 + ["compare", "select"])):
            case "binary":
                found = _binary(draw, a, b)
                if found is not None:
                    made.append(found)
            case "compare":
                truths.append(_comparison(draw, a, b))
            case _ if truths:
                c = draw(st.sampled_from(truths))
                chosen = np.where(c.array.astype(bool), a.array, b.array)
                made.append(Case(chosen, numbers.select(c.facts, a.facts, b.facts), width))
            case _:
                pass
    return made + truths


@settings(max_examples=150, deadline=None)
@given(chains())
def test_no_chain_of_operations_claims_what_does_not_hold(cases: list[Case]):
    for case in cases:
        check(case)


@settings(max_examples=60, deadline=None)
@given(chains(), st.data())
def test_changing_width_claims_what_holds(cases: list[Case], data: st.DataObject):
    case = data.draw(st.sampled_from(cases))
    signed = data.draw(st.booleans())
    width = case.width
    source = -case.array if width == 1 and signed else case.array
    wide = source if signed else _unsigned(source, width)
    check(Case(wide, numbers.extend(case.facts, width, signed), 64))
    if width > 8:
        check(Case(stored(case.array, 8), numbers.truncate(case.facts, width, 8), 8))


@settings(max_examples=60, deadline=None)
@given(chains(4), st.data())
def test_shape_operations_claim_what_holds(cases: list[Case], data: st.DataObject):
    case, other = data.draw(st.sampled_from(cases)), data.draw(st.sampled_from(cases))
    array, facts, width = case.array, case.facts, case.width
    axis = data.draw(st.integers(0, array.ndim - 1))
    order = data.draw(st.permutations(range(array.ndim)))
    shape = data.draw(st.sampled_from([s for s in SHAPES if np.prod(s) == array.size]))
    more = data.draw(
        st.sampled_from([(array.size,), (2, array.size // 2), (array.size // 2, 1, 2)])
    )
    check(Case(np.expand_dims(array, axis), shapes.expand_dims(facts, axis), width))
    check(Case(array.transpose(order), shapes.trans(facts, order), width))
    for new in (shape, more):
        check(Case(array.reshape(new), shapes.reshape(facts, new), width))
        back = shapes.reshape(shapes.reshape(facts, new), array.shape)
        check(Case(array, back, width))
    wide = tuple(4 if n == 1 else n for n in array.shape)
    check(Case(np.broadcast_to(array, wide), shapes.broadcast(facts, wide), width))
    check(
        Case(np.asarray(array.max(axis), object), shapes.reduced(facts, axis, facts.range), width)
    )
    if (other.width == 1) == (width == 1):
        both = np.stack([array, other.array], -1)
        check(Case(both, shapes.stack(facts, other.facts), width))
        joined = np.concatenate([array, other.array], axis)
        check(Case(joined, shapes.concatenate(facts, other.facts, axis), width))
    if array.shape[-1] == 2:
        check(Case(array[..., 1], shapes.unstack(facts), width))


@settings(max_examples=60, deadline=None)
@given(chains(4), st.sampled_from([1, 2, 4, 8]), st.integers(0, 6), st.integers(-9, 9), st.data())
def test_pointers_claim_what_holds(
    cases: list[Case], size: int, alignment: int, base: int, data: st.DataObject
):
    numbers_only = [case for case in cases if case.width > 1]
    scalar = Facts.make((), divisor=1 << alignment, step=size)
    first, second = (data.draw(st.sampled_from(numbers_only)) for _ in range(2))
    pointer = shapes.splat(scalar, first.array.shape)
    address = np.full(first.array.shape, base << alignment, object)
    for case in (first, second):
        pointer = numbers.add_pointer(pointer, case.facts)
        address = address + case.array * size
        check(Case(address, pointer, 64))


@settings(max_examples=60, deadline=None)
@given(chains(4), st.data())
def test_refining_by_what_holds_claims_what_holds(cases: list[Case], data: st.DataObject):
    a, b = (data.draw(st.sampled_from([c for c in cases if c.width > 1])) for _ in range(2))
    # Scalars: one element of each, of which as much is known.
    x, y = a.array.flat[0], b.array.flat[0]
    left = Facts.make((), divisor=a.facts.divisor, range=a.facts.range)
    right = Facts.make((), divisor=b.facts.divisor, range=b.facts.range)
    width = max(a.width, b.width)
    for name, function in COMPARE.items():
        for signed in (True, False):
            p, q = (x, y) if signed else (x % (1 << width), y % (1 << width))
            if function(p, q):
                predicate = name if name in ("eq", "ne") else ("s" if signed else "u") + name
                refined = numbers.refine(left, predicate, right, width)
                check(Case(np.array(x, dtype=object), refined, width))


def test_rounding_down_keeps_runs_of_quotients_and_rounding_toward_zero_does_not():
    a = numbers.add(shapes.make_range(0, 128), Facts.constant(-64, (128,)), 32)
    by = Facts.constant(32, (128,))
    assert numbers.floor_divide(a, by, 32).constancy == (32,)
    assert numbers.floor_modulo(a, by, 32).contiguity == (32,)
    assert numbers.truncating_divide(a, by, 32, signed=True).constancy == (1,)
    assert numbers.truncating_remainder(a, by, 32, signed=True).contiguity == (1,)


def test_a_row_stride_that_is_not_aligned_limits_the_vector():
    flat = numbers.add(shapes.make_range(0, 1024), Facts.make((1024,), divisibility=(1024,), constancy=(1024,), range=Interval(0, 1 << 20)), 32)  # fmt: skip
    row = numbers.floor_divide(flat, Facts.constant(1184, (1024,)), 32)
    column = numbers.floor_modulo(flat, Facts.constant(1184, (1024,)), 32)
    base = shapes.splat(Facts.make((), divisor=16, step=4), (1024,))
    for stride, most in ((1184, 4), (1185, 1), (1186, 2), (1188, 4)):
        rows = numbers.multiply(row, Facts.constant(stride, (1024,)), 32)
        pointer = numbers.add_pointer(base, numbers.add(rows, column, 32))
        assert min(pointer.aligned_run(0), 4) == most


def test_a_ragged_mask_is_constant_over_what_divides_its_bound():
    indices = shapes.make_range(0, 256)
    for bound, constant in ((255, 1), (254, 2), (240, 16), (256, 256)):
        mask = numbers.compare("slt", indices, Facts.constant(bound, (256,)), 32)
        assert mask.constancy == (constant,)
    closed = numbers.compare("sle", indices, Facts.constant(239, (256,)), 32)
    assert closed.constancy == (16,)


def test_falling_indices_are_no_run():
    falling = numbers.subtract(Facts.constant(1023, (1024,)), shapes.make_range(0, 1024), 32)
    assert falling.contiguity == (1,)
    assert falling.range == Interval(0, 1023)


def test_a_product_that_may_wrap_has_no_bounds():
    index = Facts.unknown((), Interval(0, 1023))
    wide = numbers.multiply(index, Facts.constant(65537), 32)
    assert wide.range == Interval(0, 1023 * 65537)
    assert numbers.multiply(wide, Facts.constant(32769), 32).range == Interval.of_width(32)


def test_hints_are_taken_at_their_word():
    said = shapes.hinted(Facts.unknown((64,)), [16], [8], None)
    assert (said.contiguity, said.divisibility) == ((16,), (8,))
    assert shapes.hinted(Facts.unknown(()), None, [48], None).divisor == 16
