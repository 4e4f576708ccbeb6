"""Operators against NumPy: values, types, broadcasting, pointers; and the ops that they become."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.tiledsl.language.traced import Pointer, evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import (
    as_dtype,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    pointer_type,
    promote,
    to_inexact,
    uint8,
    uint32,
)
from tiledsl.language import elementwise
from tiledsl.targets.target import Options

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARITHMETIC = [operator.add, operator.sub, operator.mul]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
BITS = [operator.and_, operator.or_, operator.xor]


def arrays(dtype: str) -> Any:
    return hnp.arrays(dtype, (16,), elements=hnp.from_dtype(np.dtype(dtype)))


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_integers_are_numpys(dtype: str, data: Any) -> None:
    a, b = data.draw(arrays(dtype)), data.draw(arrays(dtype))

    def every(x: Any, y: Any) -> Any:
        binary = [f(x, y) for f in (*ARITHMETIC, *BITS, *COMPARISONS)]
        return (*binary, x // y, x % y, -x, ~x, abs(x), +x)

    got = evaluated(every, a, b)
    with np.errstate(all="ignore"):
        binary = [f(a, b) for f in (*ARITHMETIC, *BITS, *COMPARISONS)]
        want = [*binary, a // b, a % b, -a, ~a, abs(a), a]
    for g, w in zip(got, want, strict=True):
        same(g, w)


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_shifts_of_any_count_are_numpys(dtype: str, data: Any) -> None:
    a = data.draw(arrays(dtype))
    b = data.draw(hnp.arrays(dtype, (16,), elements=st.integers(0, 100)))
    width = a.dtype.itemsize * 8

    def every(x: Any, y: Any) -> Any:
        constants = [f(x, c) for f in (operator.lshift, operator.rshift) for c in (0, 3, width - 1)]
        return (x << y, x >> y, x << width, x >> width, *constants)

    got = evaluated(every, a, b)
    constants = [f(a, a.dtype.type(c)) for f in (np.left_shift, np.right_shift)
                 for c in (0, 3, width - 1)]  # fmt: skip
    ends = [np.zeros_like(a), np.where(a < 0, a.dtype.type(-1) if a.dtype.kind == "i" else a, 0)]
    for g, w in zip(got, [a << b, a >> b, *ends, *constants], strict=True):
        same(g, w.astype(a.dtype))


def test_negative_counts_shift_everything_out() -> None:
    x, count = np.array([5, -5], np.int32), np.array([-1, -40], np.int32)
    left, right = evaluated(lambda a, b: (a << b, a >> b), x, count)
    assert (left.tolist(), right.tolist()) == ([0, 0], [0, -1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_floats_are_numpys(dtype: str, data: Any) -> None:
    numpy = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    with np.errstate(all="ignore"):
        a, b = (data.draw(arrays("float64")).astype(numpy) for _ in range(2))

    def every(x: Any, y: Any) -> Any:
        return (*[f(x, y) for f in (*ARITHMETIC, operator.truediv, *COMPARISONS)], -x, abs(x))

    got = evaluated(every, a, b)
    with np.errstate(all="ignore"):
        want = [f(a, b) for f in (*ARITHMETIC, operator.truediv, *COMPARISONS)] + [-a, abs(a)]
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_array_equal(g.astype(np.float64), w.astype(np.float64))


@settings(max_examples=20, deadline=None)
@given(arrays("float32"), arrays("float32"))
def test_float_floor_division_and_remainder_are_numpys(a: Any, b: Any) -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -3.0, 7.5], np.float32)
    a, b = np.concatenate([a, np.repeat(special, 8)]), np.concatenate([b, np.tile(special, 8)])
    a, b = np.resize(a, 128), np.resize(b, 128)
    quotient, remainder = evaluated(lambda x, y: (x // y, x % y), a, b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(remainder, a % b)
        np.testing.assert_array_equal(quotient, a // b)
        finite = ~np.isnan(a % b)
        np.testing.assert_array_equal(np.signbit(remainder)[finite], np.signbit(a % b)[finite])


def test_bools_order_add_as_or_and_multiply_as_and() -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    got = evaluated(
        lambda x, y: (*[f(x, y) for f in (*COMPARISONS, *BITS)], x + y, x * y, ~x, x + 1, x / y),
        a,
        b,
    )
    with np.errstate(all="ignore"):
        want = [f(a, b) for f in (*COMPARISONS, *BITS)]
    want += [a + b, a * b, ~a, (a + 1).astype(np.int32)]
    for g, w in zip(got[:-1], want, strict=True):
        same(g, w)
    assert got[-1].dtype == np.float32


@pytest.mark.parametrize("left", ["int8", "uint8", "uint32", "int64", "float16", "bool"])
@pytest.mark.parametrize("right", ["int8", "uint16", "int32", "float32", "bfloat16"])
def test_mixed_types_meet_by_the_table(left: str, right: str) -> None:
    types = [np.dtype(getattr(ml_dtypes, n, None) or n) for n in (left, right)]
    a, b = (np.arange(4).astype(t) for t in types)
    total, ratio, _ = evaluated(lambda x, y: (x + y, x / y, x < y), a, b)
    meet = promote(as_dtype(types[0]), as_dtype(types[1]))
    assert meet is not None
    assert as_dtype(total.dtype) is meet
    assert as_dtype(ratio.dtype) is to_inexact(meet)


def test_numbers_are_weak_and_rounded_to_the_type_first() -> None:
    x = np.array([1, 2], np.float16)
    got = evaluated(lambda v: (v + 1, 2.0 * v, v * True, 2049 + v * 0, np.float32(1.5) + v), x)
    assert [g.dtype.name for g in got] == ["float16"] * 4 + ["float32"]
    assert got[3].tolist() == [2048, 2048]
    integers = evaluated(
        lambda v: (v + 1.5, v / 2, v // 2, 7 - v, v + True), np.array([5], np.int8)
    )
    assert [g.dtype.name for g in integers] == ["float32", "float32", "int8", "int8", "int8"]


def test_a_number_becomes_one_constant_of_the_tiles_shape() -> None:
    text = str(traced(lambda x: x * 3 + 1, (float32, (4, 8))))
    assert text.count("arith.constant dense") == 2
    assert "splat" not in text


def test_shapes_broadcast_as_numpys() -> None:
    a, b, s = np.arange(4), np.arange(32).reshape(8, 4), np.int64(100)
    got = evaluated(lambda x, y, z: (x + y, y - z, z * x, x[:, None] + x), a, b, s)
    for g, w in zip(got, [a + b, b - s, s * a, a[:, None] + a], strict=True):
        same(g, w)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 16, -1, -3, 0.5, 2.0])
def test_powers_known_at_compile_time(exponent: Any) -> None:
    x = np.array([1, 2, 4, 0.5], np.float64)
    np.testing.assert_allclose(evaluated(lambda v: v**exponent, x), x**exponent, rtol=1e-15)
    if isinstance(exponent, int) and exponent >= 0:
        n = np.array([-3, 2, 0, 7], np.int8)
        same(evaluated(lambda v: v**exponent, n), n**exponent)


def test_pointers_move_by_elements_and_compare_as_addresses() -> None:
    x = np.arange(16, dtype=np.int32)

    def moved(p: Any, n: Any, offsets: Any) -> Any:
        q = p + n
        ends = (q + offsets) - (p - n)
        return ends, q - p, q > p, p == p, p != 0, (q - 1) >= p, p < p - 1, p - n == p

    got = evaluated(moved, Pointer(x), np.int32(3), np.array([0, 5], np.uint8))
    assert [g.tolist() for g in got] == [[6, 11], 3, True, True, True, True, False, False]


def test_offsets_are_taken_at_their_own_width() -> None:
    pointer = pointer_type(float32)
    for dtype, offset, op in (
        (int8, "i32", "arith.extsi"),
        (uint8, "i32", "arith.extui"),
        (int32, "i32", None),
        (uint32, "i64", "arith.extui"),
        (int64, "i64", None),
        (bool_, "i32", "arith.extui"),
    ):
        text = str(traced(lambda p, n: p + n, pointer, dtype))
        assert f"(!tile.ptr<f32>, {offset})" in text, dtype
        assert op is None or op in text, dtype
    # The negation of the least int32 does not wrap.
    assert "(!tile.ptr<f32>, i64)" in str(traced(lambda p, n: p - n, pointer, int32))
    assert "arith.constant -4 : i32" in str(traced(lambda p: p - 4, pointer))


@pytest.mark.parametrize(
    ("options", "add", "divide"),
    [
        (Options(), "fastmath<contract>", None),
        (Options(fp_contract=False), None, None),
        (Options(fast_math=True), "fastmath<arcp,contract,afn>", "fastmath<arcp,afn>"),
    ],
)
def test_float_flags_follow_the_options(
    options: Options, add: str | None, divide: str | None
) -> None:
    text = str(traced(lambda x: (x + x, x / x), float32, options=options))
    lines = {op: next(line for line in text.splitlines() if op in line) for op in ("addf", "divf")}
    for line, flag in ((lines["addf"], add), (lines["divf"], divide)):
        assert (flag in line) if flag else ("fastmath" not in line)


def test_logical_not_is_where_a_value_is_zero() -> None:
    got = evaluated(elementwise.logical_not, np.array([0, -0.0, np.nan, 2], np.float32))
    assert got.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (lambda x: x << 1, (bool_,), None),
        (
            lambda x: x << x,
            (bool_,),
            "expected operands of `<<` that are integers, found bool scalar\n"
            "  hint: convert them, as x.to(tile.int32)",
        ),
        (
            lambda x: x // x,
            (bool_,),
            "expected operands of `//` that are numbers, found bool scalar\n"
            "  hint: convert them, as x.to(tile.int32)",
        ),
        (
            lambda x: x & 1.5,
            (int32,),
            "expected operands of `&` that are integers or bools, found float32 scalar",
        ),
        (lambda x: x >> 1, (float64,), "expected operands of `>>` that are integers, found float64 "
         "scalar"),
        (
            lambda p, q: p - q,
            (pointer_type(float32), pointer_type(float16)),
            "expected pointers of one type, found pointer<float32> and pointer<float16>",
        ),
        (lambda p: p * 2, (pointer_type(float32),), "expected operands of `*` that are numbers, "
         "found pointer<float32> scalar\n"
         "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to"),
        (lambda x: x**-1, (int32,), "expected an exponent of at least 0 for int32 scalar, found -1\n"
         "  hint: convert the base to a float type first"),
        (lambda x: x**2.5, (float32,), "expected an integer exponent of at most 64, found 2.5\n"
         "  hint: x ** y of positive floats is tile.exp2(y * tile.log2(x))"),
        (lambda x: x + None, (int32,), "expected a tile or a number, found None"),
        (lambda x: x + 300, (uint8,), "expected a number that fits uint8 (0 to 255), found 300\n"
         "  hint: convert the other operand first, as x.to(tile.int32)"),
        (lambda x: x > -1, (uint8,), "expected a number that fits uint8 (0 to 255), found -1\n"
         "  hint: convert the other operand first, as x.to(tile.int32)"),
        (lambda x: -x, (bool_,), "expected a number after `-`, found bool scalar\n"
         "  hint: ~x inverts a bool"),
    ],
)  # fmt: skip
def test_messages(function: Any, kinds: Any, message: str | None) -> None:
    if message is None:
        traced(function, *kinds)
        return
    with pytest.raises(KernelError) as found:
        traced(function, *kinds)
    assert str(found.value) == message
