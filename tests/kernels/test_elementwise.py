"""Operators and elementwise functions: values and types, for every element type and ragged sizes."""

import operator
from collections.abc import Callable

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import (
    ALL,
    BOOL,
    FLOATS,
    FP8,
    INTEGERS,
    PLAIN_SIZES,
    SIGNED,
    SIZES,
    bits_of,
    cast,
    check,
    is_nan,
    one_zero,
    poisoned,
    sample,
)
from tiledsl.dtypes import DType

BLOCK = 256


@tile.jit
def map_unary(x, out, n, OPS: tile.constexpr, BLOCK: tile.constexpr):
    offsets = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    mask = offsets < n
    value = tile.load(x + offsets, mask=mask)
    for row, op in enumerate(OPS):
        result = op(value)
        tile.static_assert(result.dtype == out.dtype.element_ty)
        tile.store(out + row * n + offsets, result, mask=mask)


@tile.jit
def map_binary(x, y, out, n, OPS: tile.constexpr, BLOCK: tile.constexpr):
    offsets = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    mask = offsets < n
    left, right = tile.load(x + offsets, mask=mask), tile.load(y + offsets, mask=mask)
    for row, op in enumerate(OPS):
        result = op(left, right)
        tile.static_assert(result.dtype == out.dtype.element_ty)
        tile.store(out + row * n + offsets, result, mask=mask)


Named = dict[str, tuple[Callable, Callable]]
"""By name: the kernel's function and NumPy's."""


def run_unary(x, table: Named, result: DType) -> None:
    n = x.size
    out = poisoned(n * len(table), result)
    ops = tuple(ours for ours, _ in table.values())
    map_unary[tile.cdiv(n, BLOCK),](x, out, n, OPS=ops, BLOCK=BLOCK)
    with np.errstate(all="ignore"):
        for row, (name, (_, numpy)) in enumerate(table.items()):
            last = row == len(table) - 1
            rows = out[row * n :] if last else out[row * n : (row + 1) * n]
            check(rows, numpy(x), f"{name} of {n} {x.dtype}")


def run_binary(x, y, table: Named, result: DType) -> None:
    n = x.size
    out = poisoned(n * len(table), result)
    ops = tuple(ours for ours, _ in table.values())
    map_binary[tile.cdiv(n, BLOCK),](x, y, out, n, OPS=ops, BLOCK=BLOCK)
    with np.errstate(all="ignore"):
        for row, (name, (_, numpy)) in enumerate(table.items()):
            last = row == len(table) - 1
            rows = out[row * n :] if last else out[row * n : (row + 1) * n]
            check(rows, numpy(x, y), f"{name} of {n} {x.dtype}")


def sizes_for(dtype: DType) -> tuple[int, ...]:
    """Return every size for two types, and for the others those that share one compilation."""
    return SIZES if dtype in (tile.int32, tile.float32) else PLAIN_SIZES


def in_type(function: Callable, dtype: DType) -> Callable:
    """Return `function` of float32 values, its result rounded to a small float type."""
    if dtype.primitive_bitwidth >= 32 or not dtype.is_floating():
        return function
    return lambda *xs: cast(function(*(x.astype(np.float32) for x in xs)), dtype)


# --- arithmetic ----------------------------------------------------------------------------------


def arithmetic(dtype: DType) -> Named:
    table: Named = {
        "+": (operator.add, in_type(operator.add, dtype)),
        "-": (operator.sub, in_type(operator.sub, dtype)),
        "*": (operator.mul, in_type(operator.mul, dtype)),
        "maximum": (tile.maximum, in_type(np.maximum, dtype)),
        "minimum": (tile.minimum, in_type(np.minimum, dtype)),
    }
    if dtype.is_floating():
        table["/"] = operator.truediv, in_type(operator.truediv, dtype)
    return table


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *FP8], ids=str)
def test_arithmetic_is_numpys(place: str, dtype: DType) -> None:
    for n in sizes_for(dtype):
        table = arithmetic(dtype)
        x, y = sample(dtype, n, 1), sample(dtype, n, 2)
        if dtype.is_floating():  # which zero of two is greater is nobody's rule
            x, y = one_zero(x), one_zero(y)
        run_binary(x, y, table, dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division_rounds_down_and_by_zero_gives_zero(place: str, dtype: DType) -> None:
    table: Named = {
        "//": (operator.floordiv, np.floor_divide),
        "%": (operator.mod, np.remainder),
    }
    for n in sizes_for(dtype):
        run_binary(sample(dtype, n, 3), sample(dtype, n, 4), table, dtype)


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 16, 100, 127, -1, -2, -3, -8, -100])
def test_division_by_a_constant_is_exact(place: str, divisor: int) -> None:
    for dtype in SIGNED if divisor < 0 else INTEGERS:
        table: Named = {
            "//": (lambda x: x // divisor, lambda x: x // x.dtype.type(divisor)),
            "%": (lambda x: x % divisor, lambda x: x % x.dtype.type(divisor)),
            "c//": (lambda x: divisor // x, lambda x: x.dtype.type(divisor) // x),
        }
        run_unary(sample(dtype, 1000, 5), table, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fmax_and_fmin_ignore_nan(place: str, dtype: DType) -> None:
    x, y = sample(dtype, 1000, 6), sample(dtype, 1000, 7)
    x, y = one_zero(x), one_zero(y)
    table: Named = {
        "fmax": (tile.fmax, in_type(np.fmax, dtype)),
        "fmin": (tile.fmin, in_type(np.fmin, dtype)),
    }
    run_binary(x, y, table, dtype)


def flip_sign(x: np.ndarray) -> np.ndarray:
    bits = bits_of(x)
    return (bits ^ bits.dtype.type(1 << (8 * x.itemsize - 1))).view(x.dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *FP8], ids=str)
def test_sign_and_magnitude(place: str, dtype: DType) -> None:
    table: Named = {"+x": (operator.pos, operator.pos), "abs": (tile.abs, np.abs)}
    if dtype.is_floating():
        table["-x"] = operator.neg, flip_sign
    else:
        table["-x"] = operator.neg, lambda x: (np.zeros_like(x) - x).astype(x.dtype)
    for n in sizes_for(dtype):
        run_unary(sample(dtype, n, 8), table, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_rounds_once(place: str, dtype: DType) -> None:
    @tile.jit
    def kernel(x, y, z, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        a, b, c = (tile.load(p + i, mask=i < n) for p in (x, y, z))
        tile.store(out + i, tile.fma(a, b, c), mask=i < n)

    n = 1000
    rng = np.random.default_rng(9)
    x, y, z = (cast(rng.standard_normal(n), dtype) for _ in range(3))
    z[: n // 2] = -(x[: n // 2] * y[: n // 2])  # what remains is the product's rounding error
    out = poisoned(n, dtype)
    kernel[(1,)](x, y, z, out, n, BLOCK=1024)
    wide = np.float64 if dtype.primitive_bitwidth < 64 else np.longdouble
    exact = x.astype(wide) * y.astype(wide) + z.astype(wide)
    if dtype is tile.float64:  # a long double has too few bits for the whole product
        np.testing.assert_allclose(out[n // 2 : n], exact[n // 2 :].astype(float), rtol=1e-15)
        assert (out[: n // 2] != 0).any()
    else:
        check(out, cast(exact, dtype), f"fma of {dtype}")


@pytest.mark.parametrize("dtype", [tile.float32, tile.float64], ids=str)
def test_floats_divide_down_as_numpys(place: str, dtype: DType) -> None:
    table: Named = {
        "//": (operator.floordiv, np.floor_divide),
        "%": (operator.mod, np.remainder),
    }
    rng = np.random.default_rng(30)
    x = (rng.standard_normal(1000) * 100).astype(dtype.numpy)
    y = (rng.standard_normal(1000) * 3).astype(dtype.numpy)
    x[:100], y[:100] = np.rint(x[:100]), 2
    y[100:110], x[105:115], y[112:] = 0, np.inf, np.abs(y[112:])
    x[120], y[121], y[122] = np.nan, np.nan, np.inf
    run_binary(x, y, table, dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_integer_powers_multiply(place: str, dtype: DType) -> None:
    x = np.array([0, 1, 2, 3, 5], dtype.numpy)
    table: Named = {
        f"**{n}": (lambda x, n=n: x**n, lambda x, n=n: (x.astype(np.float64) ** n).astype(x.dtype))
        for n in (0, 1, 2, 3)
    }
    run_unary(x, table, dtype)


@pytest.mark.parametrize("dtype", [tile.uint32, tile.uint64, tile.int32], ids=str)
def test_high_halves_of_products(place: str, dtype: DType) -> None:
    bits = dtype.primitive_bitwidth

    def high(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        mask = 2**bits - 1
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        products = [(a & mask) * (b & mask) >> bits for a, b in pairs]
        return np.array(products, f"u{bits // 8}").view(dtype.numpy)

    x, y = sample(dtype, 1000, 31), sample(dtype, 1000, 32)
    run_binary(x, y, {"umulhi": (tile.umulhi, high)}, dtype)


def test_division_rounds_right_even_in_fast_math(place: str) -> None:
    x, y = sample(tile.float32, 1000, 33), sample(tile.float32, 1000, 34)
    out = poisoned(1000, tile.float32)
    map_binary[4,](x, y, out, 1000, OPS=(tile.div_rn,), BLOCK=BLOCK, fast_math=True)
    with np.errstate(all="ignore"):
        check(out, x / y, "div_rn")


# --- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BOOL, *INTEGERS], ids=str)
def test_bit_operations(place: str, dtype: DType) -> None:
    table: Named = {
        "&": (operator.and_, operator.and_),
        "|": (operator.or_, operator.or_),
        "^": (operator.xor, operator.xor),
        "~": (lambda x, y: ~x, lambda x, y: ~x),
    }
    for n in sizes_for(dtype):
        run_binary(sample(dtype, n, 10), sample(dtype, n, 11), table, dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_of_any_count(place: str, dtype: DType) -> None:
    table: Named = {
        "<<": (operator.lshift, np.left_shift),
        ">>": (operator.rshift, np.right_shift),
    }
    for n in sizes_for(dtype):
        counts = np.random.default_rng(n).integers(0, 2 * dtype.primitive_bitwidth, n)
        y = counts.astype(dtype.numpy)
        run_binary(sample(dtype, n, 12), y, table, dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_a_constant(place: str, dtype: DType) -> None:
    bits = dtype.primitive_bitwidth
    table: Named = {}
    for count in (0, 1, 4, bits - 1, bits, bits + 3):
        table[f"<<{count}"] = (
            lambda x, c=count: x << c,
            lambda x, c=count: np.left_shift(x, x.dtype.type(c)),
        )
        table[f">>{count}"] = (
            lambda x, c=count: x >> c,
            lambda x, c=count: np.right_shift(x, x.dtype.type(c)),
        )
    run_unary(sample(dtype, 1000, 13), table, dtype)


# --- comparison and choice -----------------------------------------------------------------------

COMPARISONS: Named = {
    op.__name__: (op, op)
    for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
}


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_comparisons_give_bools(place: str, dtype: DType) -> None:
    for n in sizes_for(dtype):
        x, y = sample(dtype, n, 14), sample(dtype, n, 15)
        y[::3] = x[::3]
        run_binary(x, y, COMPARISONS, BOOL)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_where_takes_bits_untouched(place: str, dtype: DType) -> None:
    @tile.jit
    def kernel(condition, x, y, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        mask = i < n
        a, b = tile.load(x + i, mask=mask), tile.load(y + i, mask=mask)
        tile.store(out + i, tile.where(tile.load(condition + i, mask=mask), a, b), mask=mask)

    for n in sizes_for(dtype):
        condition, x, y = sample(BOOL, n, 16), sample(dtype, n, 17), sample(dtype, n, 18)
        out = poisoned(n, dtype)
        kernel[tile.cdiv(n, BLOCK),](condition, x, y, out, n, BLOCK=BLOCK)
        check(out, np.where(condition, x, y), f"where of {dtype}")


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_clamp_keeps_nan_and_the_upper_bound_wins(place: str, dtype: DType) -> None:
    @tile.jit
    def kernel(x, low, high, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        a, b, c = (tile.load(p + i, mask=i < n) for p in (x, low, high))
        tile.store(out + i, tile.clamp(a, b, c), mask=i < n)

    n = 1000
    x, low, high = sample(dtype, n, 19), sample(dtype, n, 20), sample(dtype, n, 21)
    if dtype.is_floating():
        x, low, high = one_zero(x), one_zero(low), one_zero(high)
        low[is_nan(low)] = 1
        high[is_nan(high)] = 2
    out = poisoned(n, dtype)
    kernel[(1,)](x, low, high, out, n, BLOCK=1024)
    f = in_type(lambda v, lo, hi: np.minimum(np.maximum(v, lo), hi), dtype)
    check(out, f(x, low, high), f"clamp of {dtype}")


# --- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts_from_and_to_every_type(place: str, source: DType) -> None:
    @tile.jit
    def kernel(x, b, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, e4, e5, n,
               BLOCK: tile.constexpr):  # fmt: skip
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        value = tile.load(x + i, mask=i < n)
        for out in (b, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, e4, e5):
            result = value.to(out.dtype.element_ty)
            tile.static_assert(result.dtype == out.dtype.element_ty)
            tile.store(out + i, result, mask=i < n)

    for n in (7, 1000):
        x = sample(source, n, 22)
        outs = [poisoned(n, dtype) for dtype in ALL]
        kernel[tile.cdiv(n, BLOCK),](x, *outs, n, BLOCK=BLOCK)
        for dtype, out in zip(ALL, outs, strict=True):
            check(out, cast(x, dtype), f"{source} to {dtype}")


def test_a_store_casts_to_the_element_type(place: str) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.store(out + i, tile.load(x + i, mask=i < n), mask=i < n)

    x = np.linspace(-3, 300, 100, dtype=np.float32)
    for dtype in (tile.int8, tile.uint8, tile.float16, tile.bfloat16, tile.float64):
        out = poisoned(100, dtype)
        kernel[(1,)](x, out, 100, BLOCK=128)
        check(out, cast(x, dtype), f"store as {dtype}")


def test_bitcast_keeps_bits(place: str) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        value = tile.load(x + i, mask=i < n).to(out.dtype.element_ty, bitcast=True)
        tile.store(out + i, value, mask=i < n)

    pairs = [
        (tile.float32, tile.int32), (tile.uint32, tile.float32), (tile.float64, tile.uint64),
        (tile.float16, tile.bfloat16), (tile.int16, tile.float16), (tile.uint8, tile.float8e5m2),
        (tile.float8e4m3fn, tile.int8), (tile.int64, tile.uint64),
    ]  # fmt: skip
    for source, target in pairs:
        x = sample(source, 200, 23)
        out = poisoned(200, target)
        kernel[(1,)](x, out, 200, BLOCK=256)
        assert out[:200].tobytes() == x.tobytes(), (source, target)


MIXED = [
    (tile.int8, tile.int32, tile.int32),
    (tile.int8, tile.uint8, tile.int16),
    (tile.uint32, tile.int32, tile.int64),
    (tile.uint8, tile.int64, tile.int64),
    (BOOL, tile.int8, tile.int8),
    (BOOL, tile.float16, tile.float16),
    (tile.int32, tile.float16, tile.float16),
    (tile.int64, tile.bfloat16, tile.bfloat16),
    (tile.float16, tile.bfloat16, tile.float32),
    (tile.float16, tile.float32, tile.float32),
    (tile.float32, tile.float64, tile.float64),
    (tile.uint64, tile.float32, tile.float32),
]


@pytest.mark.parametrize(("left", "right", "result"), MIXED, ids=str)
def test_mixed_operands_meet_in_jaxs_type(
    place: str, left: DType, right: DType, result: DType
) -> None:
    x, y = sample(left, 1000, 24), sample(right, 1000, 25)

    def meet(op: Callable) -> Callable:
        return lambda x, y: in_type(op, result)(cast(x, result), cast(y, result))

    table: Named = {"+": (operator.add, meet(np.add)), "*": (operator.mul, meet(np.multiply))}
    run_binary(x, y, table, result)
    run_binary(y, x, {"reflected -": (operator.sub, meet(np.subtract))}, result)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *FP8], ids=str)
def test_python_scalars_take_the_tiles_type(place: str, dtype: DType) -> None:
    one = dtype.numpy.type(3)
    three = lambda f: lambda x: in_type(f, dtype)(x, np.full_like(x, one))  # noqa: E731
    table: Named = {
        "x+3": (lambda x: x + 3, three(np.add)),
        "3-x": (lambda x: 3 - x, three(lambda x, c: c - x)),
        "x*3": (lambda x: x * 3, three(np.multiply)),
        "maximum(x, 3)": (lambda x: tile.maximum(x, 3), three(np.maximum)),
        "where(x < 3, x, 3)": (
            lambda x: tile.where(x < 3, x, 3),
            lambda x: np.where(x.astype(np.float64) < 3, x, np.full_like(x, one)),
        ),
    }
    if dtype.is_floating():
        table["x/3.0"] = lambda x: x / 3.0, three(np.divide)
        table["3/x"] = lambda x: 3 / x, three(lambda x, c: c / x)
    run_unary(sample(dtype, 1000, 26), table, dtype)


@pytest.mark.parametrize("dtype", [BOOL, *INTEGERS], ids=str)
def test_true_division_of_integers_is_a_float(place: str, dtype: DType) -> None:
    wide = tile.float64 if dtype.primitive_bitwidth == 64 else tile.float32
    x, y = sample(dtype, 1000, 27), sample(dtype, 1000, 28)
    table: Named = {"/": (operator.truediv, lambda x, y: cast(x, wide) / cast(y, wide))}
    run_binary(x, y, table, wide)
