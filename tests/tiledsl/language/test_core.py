"""Programs, constants, ceiling division, hints, and what stops a compilation."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import (
    bool_,
    constexpr,
    float8e4m3fn,
    float16,
    float32,
    int8,
    int32,
    int64,
    pointer_type,
    uint8,
    uint64,
)
from tiledsl.language import core
from tiledsl.targets.target import Options


def test_programs_are_int32_scalars() -> None:
    text = str(traced(lambda: (core.program_id(1), core.num_programs(constexpr(2)))))
    assert '"tile.program_id"() {axis = 1 : i64} : () -> i32' in text
    assert '"tile.num_programs"() {axis = 2 : i64} : () -> i32' in text


def test_arange_counts() -> None:
    got = evaluated(lambda: (core.arange(0, 4), core.arange(-3, 5), core.arange(7, 8)))
    assert [g.tolist() for g in got] == [[0, 1, 2, 3], list(range(-3, 5)), [7]]


def test_constants_of_every_kind() -> None:
    def several(x: Any) -> Any:
        return (
            core.zeros((2, 4)),
            core.full(4, 2049, float16),
            core.full((2,), -1.5, int8),
            core.full([2], True),
            core.full([], 3),
            core.full((2,), x, int64),
            core.full((2,), 1e9, float8e4m3fn),
            core.zeros_like(x),
            core.full_like(core.zeros((2,), uint8), 255),
            core.full((2,), 2**64 - 1, uint64),
        )

    got = evaluated(several, np.int32(7))
    assert [g.tolist() for g in got] == [
        [[0.0] * 4] * 2,
        [2048.0] * 4,
        [-1, -1],
        [True, True],
        3,
        [7, 7],
        [448.0, 448.0],
        0,
        [255, 255],
        [2**64 - 1] * 2,
    ]
    assert [g.dtype.name for g in got[:6]] == [
        *("float32", "float16", "int8", "bool", "int32", "int64"),
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.integers(-100, 100), st.integers(-9, 9).filter(bool))
def test_ceiling_division_is_exact_for_python_numbers(x: int, div: int) -> None:
    assert core.cdiv(x, div) == -(-x // div)
    assert core.cdiv(constexpr(x), np.int64(div)) == -(-x // div)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_ceiling_division_is_exact_at_run_time(dtype: str) -> None:
    low = 0 if dtype == "uint8" else -20
    x = np.arange(low, low + 64).astype(dtype)
    for div in (-5, -3, -1, 1, 3, 5):
        if div < 0 and dtype == "uint8":
            continue
        want = -(-x.astype(int) // div)
        divisors = np.full(64, div, dtype)
        constant, variable = evaluated(
            lambda v, d, c=div: (core.cdiv(v, c), core.cdiv(v, d)), x, divisors
        )
        np.testing.assert_array_equal(constant, want)
        np.testing.assert_array_equal(variable, want)
        assert constant.dtype == dtype


def test_hints_say_what_the_author_knows() -> None:
    def hinted(p: Any, n: Any) -> Any:
        x = core.max_contiguous(core.multiple_of(core.arange(0, 8) + n, 8), [8])
        return core.max_constancy(x, 2), core.multiple_of(p, 16), core.max_contiguous(n, 4)

    text = str(traced(hinted, pointer_type(float32), int32))
    for attribute in ("divisibility = array<i64: 8>", "contiguity = array<i64: 8>",
                      "constancy = array<i64: 2>", "divisibility = array<i64: 16>"):  # fmt: skip
        assert attribute in text
    assert text.count("tile.hint") == 4


def test_assumptions() -> None:
    assert '"tile.assume"' in str(traced(lambda n: core.assume(n > 0), int32))
    assert "assume" not in str(traced(lambda n: core.assume(constexpr(True)), int32))


def test_promises_are_assertions_in_debug_builds() -> None:
    def promising(n: Any) -> Any:
        core.assume(n > 0)
        return core.multiple_of(n, 16)

    text = str(traced(promising, int32, options=Options(debug=True)))
    assert text.count("tile.assert") == 2
    assert "multiple_of: expected a multiple of 16" in text
    assert "tile.assume" not in text
    assert "tile.assert" not in str(traced(promising, int32))


def test_static_assert_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    core.static_assert(constexpr(1))
    core.static_print("a", 1, sep="-", end="!")
    assert capsys.readouterr().out == "a-1!"
    with pytest.raises(KernelError) as found:
        core.static_assert(0)
    assert str(found.value) == "static_assert failed"


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (lambda: core.zeros((3, 4)), (), "expected tile sizes that are powers of two, found (3, 4)\n"
         "  hint: take 4 and mask the elements past 3"),
        (lambda: core.zeros((0,)), (), "expected tile sizes that are powers of two, found (0,)"),
        (lambda: core.zeros((2048, 1024)), (), "expected a tile of at most 1048576 elements, found "
         "2097152 in (2048, 1024)"),
        (lambda n: core.zeros((n,)), (int32,), "expected each size in shape to be an integer known "
         "at compile time, found int32 scalar\n  hint: make it a parameter annotated "
         "`tile.constexpr`"),
        (lambda: core.full((4,), 300, int8), (), "expected a number that fits int8 (-128 to 127), "
         "found Python int 300"),
        (lambda x: core.full((4,), x), ((int32, (4,)),), "expected a scalar to fill a tile with, "
         "found int32 tile of shape (4,)"),
        (lambda: core.arange(0, 2**33), (), "expected bounds of arange that fit int32, found 0 to "
         "8589934592"),
        (lambda: core.program_id(cast("int", 1.5)), (), "expected `axis` of program_id to be an integer known at "
         "compile time, found Python float 1.5"),
        (lambda x: core.cdiv(x, 2), (float32,), "expected integers in cdiv, found float32 scalar"),
        (lambda x: core.cdiv(x, 0), (int32,), "expected a divisor other than 0, found int32 scalar "
         "// 0"),
        (lambda: core.cdiv(1, 0), (), "expected a divisor other than 0 in cdiv"),
        (lambda: core.cdiv(1.5, 2), (), "expected integers in cdiv, found Python float 1.5"),
        (lambda x: core.static_assert(x > 0), (int32,), "expected a condition of static_assert known "
         "at compile time, found bool scalar\n  hint: tile.device_assert checks at run time"),
        (lambda: core.assume(False), (), "static_assert: assume: the condition is false at compile "
         "time"),
        (lambda x: core.assume(x), (int32,), "expected a bool scalar in assume, found int32 scalar"),
        (lambda x: core.multiple_of(x, 4), (bool_,), "expected integers or pointers in multiple_of, "
         "found bool scalar"),
        (lambda x: core.multiple_of(x, [4, 4]), ((int32, (8,)),), "expected 1 `values` of "
         "multiple_of for int32 tile of shape (8,), found 2"),
    ],
)  # fmt: skip
def test_messages(function: Any, kinds: Any, message: str) -> None:
    with pytest.raises(KernelError) as found:
        traced(function, *kinds)
    assert str(found.value) == message


def test_functions_of_tiles_work_in_kernels_only() -> None:
    with pytest.raises(KernelError) as found:
        core.zeros((4,))
    assert str(found.value) == (
        "expected to be inside a kernel: this function works on tiles\n"
        "  hint: launch a kernel as kernel[grid](...)"
    )
