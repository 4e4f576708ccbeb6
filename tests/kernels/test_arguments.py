"""What a kernel can be called with: every kind of scalar, None, tuples, functions, types."""

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import ALL, bits_of, cast, check, is_nan, poisoned


@tile.jit
def echo(value, out):
    tile.static_assert(value.dtype == out.dtype.element_ty)
    tile.store(out, value)


SCALARS = [
    (0, tile.int32), (1, tile.int32), (16, tile.int32), (-1, tile.int32), (2**31 - 1, tile.int32),
    (-(2**31), tile.int32), (2**31, tile.int64), (-(2**31) - 1, tile.int64), (2**63 - 1, tile.int64),
    (-(2**63), tile.int64), (2**63, tile.uint64), (2**64 - 1, tile.uint64),
    (True, tile.bool_), (False, tile.bool_), (np.True_, tile.bool_),
    (1.5, tile.float32), (0.1, tile.float32), (float("inf"), tile.float32), (float("nan"), tile.float32),
    (-0.0, tile.float32), (1e300, tile.float32),
    (np.int8(-5), tile.int8), (np.int8(1), tile.int8), (np.uint8(200), tile.uint8), (np.int16(-300), tile.int16),
    (np.uint16(65535), tile.uint16), (np.int32(7), tile.int32), (np.uint32(2**32 - 1), tile.uint32),
    (np.int64(5), tile.int64), (np.int64(-(2**63)), tile.int64), (np.uint64(2**64 - 1), tile.uint64),
    (np.float16(0.1), tile.float16), (ml_dtypes.bfloat16(0.1), tile.bfloat16),
    (np.float32(0.1), tile.float32), (np.float64(0.1), tile.float64), (np.float64(1e300), tile.float64),
    (ml_dtypes.float8_e4m3fn(0.3), tile.float8e4m3fn), (ml_dtypes.float8_e5m2(-0.3), tile.float8e5m2),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype"), SCALARS, ids=lambda v: repr(v))
def test_scalars_arrive_with_their_type_and_value(place: str, value: object, dtype) -> None:
    out = poisoned(1, dtype)
    echo[1,](value, out)
    with np.errstate(over="ignore"):
        expected = np.array([value]).astype(dtype.numpy)
    check(out, expected, repr(value))


def test_one_warm_kernel_takes_small_and_large_integers_in_turn(place: str) -> None:
    for value in (5, 2**31 + 5, 5, -7, 2**63 + 1, 16, 1):
        out = poisoned(1, tile.uint64 if value >= 2**63 else tile.int64)

        @tile.jit
        def widen(value, out):
            tile.store(out, value.to(out.dtype.element_ty))

        widen[1,](value, out)
        check(out, np.array([value], out.dtype), repr(value))


class Mode(enum.IntEnum):
    """A plain enumeration of integers."""

    SLOW = 3
    FAST = 7


def test_enumerations_are_their_numbers(place: str) -> None:
    out = poisoned(1, tile.int32)
    echo[1,](Mode.FAST, out)
    check(out, np.array([7], np.int32), "enum")


def test_scalars_take_part_in_arithmetic_as_their_type(place: str) -> None:
    @tile.jit
    def kernel(a, b, out, N: tile.constexpr):
        tile.store(out + tile.arange(0, N), tile.arange(0, N) * a + b)

    out = poisoned(8, tile.float32)
    kernel[1,](3, 0.5, out, N=8)
    check(out, np.arange(8, dtype=np.float32) * 3 + 0.5, "int32 by int32 plus float32")
    out = poisoned(8, tile.int64)
    kernel[1,](2**40, -1, out, N=8)
    check(out, np.arange(8) * 2**40 - 1, "int64")


def test_packing_many_scalars_of_all_widths(place: str) -> None:
    @tile.jit
    def kernel(out, a, b, c, d, e, f, g, h, i, j):
        for at, value in enumerate((a, b, c, d, e, f, g, h, i, j)):
            tile.store(out + at, value.to(tile.float64))

    values = [
        True, np.int8(-3), 2**40, np.float16(1.5), np.uint8(250), -2.25, np.int16(-999),
        ml_dtypes.bfloat16(3), np.float64(1e-200), np.uint32(4_000_000_000),
    ]  # fmt: skip
    out = poisoned(10, tile.float64)
    kernel[1,](out, *values)
    check(out, np.array([float(v) for v in values]), "packed")


def test_none_selects_code(place: str) -> None:
    @tile.jit
    def kernel(x, bias, out, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i)
        if bias is not None:
            value += tile.load(bias + i)
        tile.store(out + i, value)

    x = np.arange(16, dtype=np.int32)
    for bias in (None, x[::-1].copy(), None):
        out = poisoned(16, tile.int32)
        kernel[1,](x, bias, out, N=16)
        check(out, x if bias is None else x + bias, f"{bias is None}")


def test_functions_and_types_are_constants(place: str) -> None:
    @tile.jit
    def double(x):
        return x * 2

    def triple(x):
        return x * 3

    @tile.jit
    def kernel(x, out, FUNCTION, DTYPE, NAME, N: tile.constexpr):
        i = tile.arange(0, N)
        value = FUNCTION(tile.load(x + i)).to(DTYPE)
        tile.static_assert(value.dtype == DTYPE)
        if NAME == "minus":
            value = -value
        tile.store(out + i, value.to(out.dtype.element_ty))

    x = np.arange(1, 17, dtype=np.int32)
    cases = (
        (double, 2), (triple, 3), (lambda v: v * 4, 4), (functools.partial(lambda k, v: v * k, 5), 5),
    )  # fmt: skip
    for function, factor in cases:
        for dtype in (tile.float32, tile.int8):
            for name in ("plus", "minus"):
                out = poisoned(16, tile.float32)
                kernel[1,](x, out, function, dtype, name, N=16)
                sign = -1 if name == "minus" else 1
                check(out, (x * factor * sign).astype(np.float32), f"{factor}")


def test_tuples_of_arrays_and_numbers(place: str) -> None:
    @tile.jit
    def kernel(arrays, shape, out, N: tile.constexpr):
        i = tile.arange(0, N)
        total = tile.zeros((N,), tile.float32)
        for x in arrays:
            total += tile.load(x + i, mask=i < shape[0], other=0.0)
        tile.store(out + i, total * shape[1][1])

    x = np.arange(10, dtype=np.float32)
    out = poisoned(16, tile.float32)
    kernel[1,]((x, x * 10, x * 100), (10, (1, 2.5)), out, N=16)
    check(out, np.append(x * 111 * 2.5, np.zeros(6, np.float32)).astype(np.float32), "tuples")


def test_tuples_hold_whatever_arguments_may_be(place: str) -> None:
    @tile.jit
    def kernel(things, out, empty):
        (x, function, nothing), number = things
        tile.static_assert(nothing is None)
        tile.static_assert(len(empty) == 0)
        tile.store(out, function(tile.load(x)) + number)

    x = np.array([5], np.int32)
    for function, number in ((abs_plus_one, 1), (twice, 2**40), (twice, 1)):
        out = poisoned(1, tile.int64)
        kernel[1,](((x, function, None), number), out, ())
        check(out, np.array([function(5) + number]), "mixed")


class Matrix(NamedTuple):
    """A matrix by rows; kernels call its method."""

    start: Any
    rows: Any
    columns: Any

    def row(self, i, n):
        j = tile.arange(0, n)
        return tile.load(self.start + i * self.columns + j, mask=j < self.columns, other=0)


@dataclasses.dataclass
class Problem:
    """A dataclass with another one, a constant and a tuple in it."""

    matrix: Matrix
    mode: str = "sum"
    weights: Any = (1, 2)

    def __post_init__(self):
        assert isinstance(self.matrix.rows, int), "it runs where numbers are, not in the kernel"


@tile.jit
def sum_rows(problem, out, N: tile.constexpr):
    matrix = problem.matrix
    total = tile.zeros((N,), tile.float32)
    for i in range(matrix.rows):
        row = matrix.row(i, N)
        total = total + row if problem.mode == "sum" else tile.maximum(total, row)
    first, second = problem.weights
    tile.store(out + tile.arange(0, N), total * first + second)


def test_named_tuples_and_dataclasses_of_run_time_values(place: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for mode, weights in (("sum", (2, 0.5)), ("max", (1, 0)), ("sum", (3, 0.5))):
        out = poisoned(4, tile.float32)
        sum_rows[1,](Problem(Matrix(x, *x.shape), mode, weights), out, N=4)
        combined = x.sum(0) if mode == "sum" else x.max(0)
        check(out, combined * np.float32(weights[0]) + np.float32(weights[1]), mode)


def test_a_changed_field_of_one_object_counts(place: str) -> None:
    x = np.ones((2, 4), np.float32)
    problem = Problem(Matrix(x, 2, 4), weights=(1, 0))
    for weights in ((1, 0), (5, 0), (5, 0.5)):
        problem.weights = weights
        out = poisoned(4, tile.float32)
        sum_rows[1,](problem, out, N=4)
        check(out, np.full(4, 2 * weights[0] + weights[1], np.float32), str(weights))


def test_a_named_tuple_is_no_plain_one() -> None:
    @tile.jit
    def kernel(pair, out):
        tile.store(out, 1 if hasattr(pair, "rows") else 2)

    out = poisoned(1, tile.int32)
    for pair, expected in (((1, 2, 3), 2), (Matrix(1, 2, 3), 1), ((1, 2, 3), 2)):
        kernel[1,](pair, out)
        assert out[0] == expected


def test_a_compound_is_compiled_ahead_of_time_by_its_class() -> None:
    signature = {
        "problem.matrix.start": "*fp32:16",
        "problem.matrix.rows": "i32",
        "problem.matrix.columns": "i32",
        "problem.weights.0": "fp32",
        "problem.weights.1": "1",
        "out": "*fp32:16",
    }
    classes = {"problem": Problem, "problem.matrix": Matrix, "problem.mode": "max"}
    compiled = tile.compile(sum_rows, signature, {**classes, "N": 4}, "sm_80")
    assert "arith.maximumf" in str(compiled.asm["tile"])
    with pytest.raises(
        tile.KernelError, match=r"`problem\.matrix`: expected items numbered from 0"
    ):
        tile.compile(sum_rows, signature, {"problem": Problem, "N": 4}, "sm_80")


class Norm(enum.Enum):
    """Members are constants: they have no run-time form."""

    L1 = "l1"
    L2 = "l2"


def test_members_of_an_enumeration_are_constants(place: str) -> None:
    @tile.jit
    def kernel(x, norm, out):
        value = tile.load(x)
        tile.store(out, tile.abs(value) if norm is Norm.L1 else value * value)

    x = np.array([-3], np.float32)
    for norm, expected in ((Norm.L1, 3), (Norm.L2, 9), (Norm.L1, 3)):
        out = poisoned(1, tile.float32)
        kernel[1,](x, norm, out)
        check(out, np.array([expected], np.float32), str(norm))


def abs_plus_one(x):
    return abs(x) + 1


def twice(x):
    return x * 2


@pytest.mark.parametrize("dtype", [tile.uint8, tile.uint16, tile.uint32], ids=str)
def test_tuple_items_keep_their_signedness(place: str, dtype: tile.DType) -> None:
    @tile.jit
    def kernel(pair, out):
        tile.store(out, pair[0].to(tile.int64) + pair[1])

    out = poisoned(1, tile.int64)
    kernel[1,]((dtype.numpy.type(dtype.highest), -1), out)
    check(out, np.array([int(dtype.highest) - 1]), f"{dtype}")


def test_constants_of_every_kind_specialize(place: str) -> None:
    @tile.jit
    def kernel(out, VALUE: tile.constexpr):
        if isinstance(VALUE, bool):
            tile.store(out, 1)
        elif isinstance(VALUE, int):
            tile.store(out, 2 + VALUE)
        elif isinstance(VALUE, float):
            tile.store(out, 100)
        elif isinstance(VALUE, tuple):
            tile.store(out, 200 + VALUE[1])
        else:
            tile.store(out, 300 + len(VALUE))

    cases = [
        (True, 1),
        (1, 3),
        (1.0, 100),
        ((1, 5), 205),
        ("text", 304),
        ([1, 2], 302),
        ({"a": 1}, 301),
    ]
    for value, expected in cases:
        out = poisoned(1, tile.int32)
        kernel[1,](out, VALUE=value)
        check(out, np.array([expected], np.int32), repr(value))


def test_defaults_and_keywords(place: str) -> None:
    @tile.jit
    def kernel(out, a, b=7, C: tile.constexpr = 3):  # pyright: ignore[reportArgumentType]
        tile.store(out, a * 100 + b * 10 + C)

    for arguments, keywords, expected in (
        ((1,), {}, 173), ((1, 2), {}, 123), ((), {"a": 4, "b": 5}, 453), ((2,), {"C": 9}, 279),
    ):  # fmt: skip
        out = poisoned(1, tile.int32)
        kernel[1,](out, *arguments, **keywords)
        check(out, np.array([expected], np.int32), f"{expected}")


def test_constants_convert_once_to_the_type_they_meet(place: str) -> None:
    @tile.jit
    def kernel(out, VALUES: tile.constexpr):
        for i in tile.static_range(len(VALUES)):
            tile.store(out + i, tile.full((), VALUES[i], out.dtype.element_ty))

    whole, real = (0, 1, 3), (0.1, 42.0, 65519.0, 1e9, -1.5, float("inf"), float("nan"))
    for dtype in ALL:
        values = real if dtype.is_bool() else (*whole, *real)
        out = poisoned(len(values), dtype)
        kernel[1,](out, VALUES=values)
        for i, value in enumerate(values):
            expected = cast(np.array([value], np.float64), dtype)
            nan = dtype.is_floating() and is_nan(expected)[0] and is_nan(out[i : i + 1])[0]
            same = bits_of(out[i : i + 1]) == bits_of(expected)
            assert nan or same, (dtype, value, out[i])


def test_torch_tensors_on_the_cpu(place: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(16, dtype=torch.bfloat16)
    out = torch.zeros(16, dtype=torch.float32)

    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.load(x + i) * 2)

    kernel[1,](x, out, N=16)
    assert out.tolist() == [2.0 * i for i in range(16)]


@tile.jit
def copy_walking(x, out, n):
    """Copy by pointers that a loop carries, so that which argument is written takes tracing."""
    for _ in range(n):
        tile.store(out, tile.load(x))
        x += 1
        out += 1


@tile.jit
def add_atomically(x, out):
    tile.atomic_add(out, tile.load(x))


@pytest.mark.parametrize(("kernel", "more"), [(copy_walking, (4,)), (add_atomically, ())])
def test_a_read_only_array_may_be_read_and_not_written(
    kernel: tile.JITFunction, more: tuple[int, ...]
) -> None:
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    x.flags.writeable = False
    kernel[(1,)](x, out, *more)
    assert out[0] == 1
    for _ in range(2):  # compiled and cached
        with pytest.raises(tile.KernelError) as raised:
            kernel[(1,)](out, x, *more)
        assert str(raised.value) == (
            f"kernel `{kernel.name}`: argument `out`: expected an array that may be written, "
            "as the kernel stores through it, found a read-only one"
        )
    assert x[0] == 1
