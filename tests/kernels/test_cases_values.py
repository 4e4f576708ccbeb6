"""Faults that users of other kernel languages met: integers, floats, casts, constants."""

import math
import operator

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import (
    FP8,
    bits_of,
    cast,
    check,
    float_specials,
    is_nan,
    poisoned,
    sample,
    without_nan,
)


@tile.jit
def apply(x, out, n, OP: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, OP(tile.load(x + i, mask=i < n)), mask=i < n)


def run(op, x: np.ndarray, dtype: tile.DType, **options) -> np.ndarray:
    """Return op of each element, stored as `dtype`."""
    out = poisoned(x.size, dtype)
    apply[tile.cdiv(x.size, 256),](x, out, x.size, OP=op, BLOCK=256, **options)
    return out[: x.size]


def test_floor_division_of_negative_numbers_may_not_be_assumed_constant(warps: int) -> None:  # K005
    @tile.jit
    def kernel(table, out, N: tile.constexpr):
        i = tile.arange(0, N)
        a = i - 64
        tile.store(out + i, a // 32)
        tile.store(out + N + i, tile.load(table + 31 + (a % 32)))
        tile.store(out + 2 * N + i, tile.load(table + 31 + (a // 32) * 2))

    table = np.random.default_rng(5).integers(0, 10**6, 64, dtype=np.int32)
    out = poisoned(384, tile.int32)
    kernel[1,](table, out, N=128, num_warps=warps)
    a = np.arange(128) - 64
    parts = [a // 32, table[31 + a % 32], table[31 + a // 32 * 2]]
    check(out, np.concatenate(parts).astype(np.int32), "floor division")


def test_ceil_division_is_the_mathematical_ceiling(place: str) -> None:  # K007
    @tile.jit
    def kernel(a, b, out, n, FIXED: tile.constexpr, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        value = tile.load(a + i, mask=i < n)
        for row, divisor in enumerate(FIXED):
            tile.store(out + 2 * row * n + i, tile.cdiv(value, divisor), mask=i < n)
            run_time = tile.load(b + row)
            tile.store(out + (2 * row + 1) * n + i, tile.cdiv(value, run_time), mask=i < n)

    a, b = np.arange(-20, 21, dtype=np.int32), (-5, -3, -1, 1, 3, 5)
    out = poisoned(a.size * 12, tile.int32)
    kernel[1,](a, np.array(b, np.int32), out, a.size, FIXED=b, BLOCK=64)
    expected = [[math.ceil(x / d) for x in a.tolist()] for d in b for _ in range(2)]
    check(out, np.array(expected, np.int32), "cdiv")
    assert (tile.cdiv(-36, 5), tile.cdiv(7, -3)) == (-7, -2)


CONVERSIONS = [
    (np.uint8(200), tile.float64, 200), (np.uint16(60000), tile.float32, 60000),
    (np.uint32(3_000_000_000), tile.float32, 3e9), (np.uint32(3_000_000_000), tile.float64, 3e9),
    (np.float64(3e9), tile.uint32, 3_000_000_000), (np.int8(-56), tile.float64, -56),
    (np.uint64(2**63), tile.float64, 2.0**63), (np.uint8(200), tile.int32, 200), (np.int8(-56), tile.uint32, 2**32 - 56),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype", "expected"), CONVERSIONS, ids=str)
def test_signedness_picks_the_conversion(
    place: str, value, dtype: tile.DType, expected
) -> None:  # K008
    got = run(lambda x: x.to(dtype), np.array([value]), dtype)
    assert got[0] == expected

    @tile.jit
    def scalar(value, out):
        tile.store(out, value.to(out.dtype.element_ty))

    out = poisoned(1, dtype)
    scalar[1,](value, out)
    assert out[0] == expected


def test_helpers_know_the_signedness_of_their_argument(place: str) -> None:  # K010
    @tile.jit
    def helper(x):
        return x >> 1, x // 2, x < 1

    @tile.jit
    def kernel(signed, unsigned, out):
        for row, ptr in enumerate((signed, unsigned)):
            a, b, c = helper(tile.load(ptr))
            tile.store(out + 3 * row, a.to(tile.int64))
            tile.store(out + 3 * row + 1, b.to(tile.int64))
            tile.store(out + 3 * row + 2, c.to(tile.int64))

    out = poisoned(6, tile.int64)
    kernel[1,](np.array([-2], np.int32), np.array([2**32 - 2], np.uint32), out)
    check(out, np.array([-1, -1, 1, 2147483647, 2147483647, 0]), "helper")


def test_integers_wrap_at_their_width_in_tiles_and_scalars(place: str) -> None:  # K011
    @tile.jit
    def kernel(a, b, c, d, x, out, TILE: tile.constexpr):
        if TILE:
            i = tile.arange(0, 1)
            a, b, c, d = a + i.to(a.dtype), b + i.to(b.dtype), c + i.to(c.dtype), d + i.to(d.dtype)
        else:
            i = 0
        tile.store(out + i, (a << 4) >> 4)
        tile.store(out + 1 + i, (b << 4) >> 4)
        tile.store(out + 2 + i, c + 100)
        tile.store(out + 3 + i, d * 2)

    for is_tile in (False, True):
        out = poisoned(4, tile.int32)
        kernel[1,](
            np.uint8(48), np.int8(8), np.uint8(200), np.int16(30000), None, out, TILE=is_tile
        )
        check(out, np.array([0, -8, 44, -5536], np.int32), "wrapping")


def test_integers_wrap_at_their_width_as_constants(place: str) -> None:  # K011
    @tile.jit
    def kernel(out):
        tile.store(out, (tile.full((), 48, tile.uint8) << 4) >> 4)
        tile.store(out + 1, (tile.full((), 8, tile.int8) << 4) >> 4)
        tile.store(out + 2, tile.full((), 200, tile.uint8) + 100)
        tile.store(out + 3, tile.full((), 30000, tile.int16) * 2)

    out = poisoned(4, tile.int32)
    kernel[1,](out)
    check(out, np.array([0, -8, 44, -5536], np.int32), "folded")


def test_bools_order_as_zero_and_one(place: str) -> None:  # K013
    operators = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]

    @tile.jit
    def kernel(x, y, out, OPS: tile.constexpr):
        i = tile.arange(0, 4)
        a, b = tile.load(x + i), tile.load(y + i)
        for row, op in enumerate(OPS):
            tile.store(out + 8 * row + i, op(a, b))
            tile.store(out + 8 * row + 4 + i, op(i // 2 > 0, i % 2 > 0))

    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    out = poisoned(48, tile.bool_)
    kernel[1,](x, y, out, OPS=tuple(operators))
    check(out, np.concatenate([np.tile(op(x, y), 2) for op in operators]), "bools")


def test_a_loaded_bool_is_a_bool(warps: int) -> None:  # K014
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        acc = tile.zeros((BLOCK,), tile.bool_)
        one = False
        for start in range(0, n, BLOCK):
            value = tile.load(x + start + i, mask=start + i < n)
            tile.static_assert(value.dtype == tile.bool_)
            acc |= value
            one = one | tile.any(tile.where(value & (start + i < n), value, ~(value | True)), 0)
        tile.store(out, tile.any(acc, 0))
        tile.store(out + 1, one)
        tile.store(out + 2, not tile.load(x + n - 1))

    for last in (True, False):
        x = np.zeros(5000, np.bool_)
        x[4999] = last
        out = poisoned(3, tile.bool_)
        kernel[1,](x, out, x.size, BLOCK=2048, num_warps=warps)
        check(out, np.array([last, last, not last]), "any")


@pytest.mark.parametrize(("n", "k"), [(32, 5), (32, 8), (24, 7)])
def test_nested_modulo_folds_only_where_it_may(warps: int, n: int, k: int) -> None:  # K016
    @tile.jit
    def kernel(
        table, out, n, R: tile.constexpr, C: tile.constexpr, N: tile.constexpr, K: tile.constexpr
    ):
        i, j = tile.arange(0, R)[:, None], tile.arange(0, C)[None, :]
        flat = i * N + j
        tile.store(out + i * C + j, tile.load(table + (flat % N) % K))
        flat = i * n + j
        tile.store(out + R * C + i * C + j, tile.load(table + (flat % n) % K))

    out = poisoned(2048, tile.int32)
    kernel[1,](np.arange(k, dtype=np.int32), out, n, R=32, C=32, N=n, K=k, num_warps=warps)
    flat = np.arange(32)[:, None] * n + np.arange(32)
    check(out, np.tile((flat % n % k).ravel(), 2).astype(np.int32), f"{n}, {k}")


@pytest.mark.parametrize("dtype", [tile.int8, tile.int16, *FP8, tile.bfloat16], ids=str)
def test_constants_of_narrow_types_fill_every_lane(warps: int, dtype: tile.DType) -> None:  # K017
    @tile.jit
    def kernel(x, out, n, VALUES: tile.constexpr, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        other = tile.load(x + i, mask=i < n)
        for row, value in enumerate(VALUES):
            full = tile.full((BLOCK,), value, out.dtype.element_ty)
            tile.store(out + 2 * row * n + i, full, mask=i < n)
            chosen = tile.where(i % 3 == 0, value, other)
            tile.store(out + (2 * row + 1) * n + i, chosen, mask=i < n)

    values = (-3, -128, 127)
    for n in (4, 7, 64, 1000):
        x = cast(np.arange(n) % 50, dtype)
        out = poisoned(6 * n, dtype)
        kernel[1,](x, out, n, VALUES=values, BLOCK=1024, num_warps=warps)
        rows = []
        for value in values:
            one = cast(np.full(n, value), dtype)
            rows += [one, np.where(np.arange(n) % 3 == 0, one, x)]
        check(out, np.concatenate(rows), f"{n} of {dtype}")


def test_clamp_and_running_maxima_keep_nan(place: str) -> None:  # K022
    x = np.array([np.nan, -5, 0.5, 7], np.float32)
    check_list(run(lambda v: tile.clamp(v, 0.0, 1.0), x, tile.float32), [np.nan, 0, 0.5, 1])
    assert run(lambda v: tile.clamp(v, 5.0, 1.0), x[1:2], tile.float32)[0] == 1

    @tile.jit
    def running(x, out, N: tile.constexpr):
        acc = tile.full((N,), -1.0, tile.float32)
        for k in range(tile.load(x).to(tile.int32)):
            acc = tile.maximum(acc, tile.load(x + 1 + k * N + tile.arange(0, N)))
        tile.store(out, tile.max(acc, 0))

    values = np.zeros(1 + 24, np.float32)
    values[0], values[1 + 8 + 3] = 3, np.nan
    out = poisoned(1, tile.float32)
    running[1,](values, out, N=8)
    assert np.isnan(out[0])


def check_list(got: np.ndarray, expected: list[float]) -> None:
    np.testing.assert_array_equal(bits_or_nan(got), bits_or_nan(np.array(expected, got.dtype)))


def bits_or_nan(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 0x7FC00000, bits_of(x))


def test_no_float_identity_is_folded_that_changes_a_value(place: str) -> None:  # K023
    x = np.array([np.inf, np.nan, 1, -0.0], np.float32)
    check_list(run(lambda v: v * 0.0, x, tile.float32), [np.nan, np.nan, 0, -0.0])
    check_list(run(lambda v: v - v, x, tile.float32), [np.nan, np.nan, 0, 0])
    check_list(run(lambda v: v + 0.0, x, tile.float32), [np.inf, np.nan, 1, 0])
    check_list(run(lambda v: v - 0.0, x, tile.float32), [np.inf, np.nan, 1, -0.0])
    check_list(run(lambda v: 0.0 - v, x, tile.float32), [-np.inf, np.nan, -1, 0])
    check_list(run(lambda v: v / v, x, tile.float32), [np.nan, np.nan, 1, np.nan])
    differs = run(lambda v: v != v, x, tile.bool_)
    assert differs.tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", [tile.bfloat16, tile.float16, *FP8], ids=str)
def test_storage_types_are_decoded_before_arithmetic(place: str, dtype: tile.DType) -> None:  # K043
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i)
        tile.store(out + i, tile.abs(value))
        tile.store(out + N + i, -value)
        tile.store(out + 2 * N + i, tile.where(value > 0, value, -value))
        tile.store(out + 3 * N + i, tile.cumsum(value, 0))
        tile.store(out + 4 * N, tile.sum(value, 0))
        tile.store(out + 4 * N + 1, tile.max(value, 0))

    x = cast(np.random.default_rng(0).integers(-2, 3, 16), dtype)
    out = poisoned(66, dtype)
    kernel[1,](x, out, N=16)
    wide = x.astype(np.float32)
    rows = [abs(wide), -wide, abs(wide), np.cumsum(wide), [wide.sum(), wide.max()]]
    got = out[:66].astype(np.float32)
    np.testing.assert_array_equal(got, np.concatenate(rows))
    x = cast(np.array([np.nan, *range(2, 17)]), dtype)
    kernel[1,](x, out, N=16)
    assert np.isnan(out[64:66].astype(np.float32)).all()


def test_narrowing_rounds_to_nearest_even_from_every_type(place: str) -> None:  # K044
    pairs = [(257, 256), (259, 260), (-259, -260), (33000, 33024)]
    for source in (np.int32, np.int64, np.float32, np.float64, np.uint16):
        kept = [(a, b) for a, b in pairs if a >= 0 or source is not np.uint16]
        x = np.array([a for a, _ in kept], source)
        got = run(lambda v: v.to(tile.bfloat16), x, tile.bfloat16)
        assert got.astype(float).tolist() == [b for _, b in kept], source
    x = np.array([3.14], np.float32)
    assert run(lambda v: v.to(tile.bfloat16), x, tile.bfloat16)[0] == 3.140625
    nan = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(run(lambda v: v.to(tile.bfloat16), nan, tile.bfloat16).astype(float)).all()


@pytest.mark.parametrize("target", FP8, ids=str)
@pytest.mark.parametrize("source", [tile.float16, tile.bfloat16], ids=str)
def test_every_16_bit_float_narrows_right(
    place: str, source: tile.DType, target: tile.DType
) -> None:  # K046
    x = np.arange(65536, dtype=np.uint16).view(source.numpy)
    got = run(lambda v: v.to(target), x, target)
    expected = cast(x, target)
    nan = np.isnan(x.astype(np.float32))
    assert np.isnan(got.astype(np.float32)[nan]).all()
    np.testing.assert_array_equal(bits_of(got)[~nan], bits_of(expected)[~nan])


def test_narrowing_rounds_once(place: str) -> None:  # K046
    x = np.array([1.125], np.float32)
    assert run(lambda v: v.to(tile.float8e5m2), x, tile.float8e5m2)[0] == 1.0
    x = np.array([1.0625001], np.float32)
    assert run(lambda v: v.to(tile.float8e4m3fn), x, tile.float8e4m3fn)[0] == 1.125
    x = np.array([1 + 2.0**-8 + 2.0**-40], np.float64)  # float32 in between would make it a tie
    assert run(lambda v: v.to(tile.bfloat16), x, tile.bfloat16)[0] == 1 + 2.0**-7


@pytest.mark.parametrize(
    "target", [tile.float16, tile.bfloat16, tile.float32, tile.float64], ids=str
)
@pytest.mark.parametrize("source", FP8, ids=str)
def test_every_8_bit_float_widens_exactly(
    place: str, source: tile.DType, target: tile.DType
) -> None:  # K047
    x = np.arange(256, dtype=np.uint8).view(source.numpy)
    got = run(lambda v: v.to(target), x, target).astype(np.float64)
    np.testing.assert_array_equal(got, x.astype(np.float64))


def test_division_and_roots_are_correctly_rounded(place: str, emulated: bool) -> None:  # K049
    @tile.jit
    def kernel(x, y, quotient, one, root, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        a, b = tile.load(x + i, mask=i < n, other=1.0), tile.load(y + i, mask=i < n, other=1.0)
        tile.store(quotient + i, a / b, mask=i < n)
        tile.store(one + i, a / a, mask=i < n)
        tile.store(root + i, tile.sqrt(a), mask=i < n)

    n = 100_000 if emulated else 1_000_000
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 2**32, (2, n), dtype=np.uint32).view(np.float32)
    specials = float_specials(tile.float32)
    x[: specials.size**2] = np.repeat(specials, specials.size)
    y[: specials.size**2] = np.tile(specials, specials.size)
    quotient, one, root = (poisoned(n, tile.float32) for _ in range(3))
    kernel[tile.cdiv(n, 1024),](x, y, quotient, one, root, n, BLOCK=1024)
    with np.errstate(all="ignore"):
        check(quotient, x / y, "quotient")
        check(one, x / x, "x / x")
        check(root, np.sqrt(x), "root")


def test_contraction_can_be_turned_off(place: str) -> None:  # K050
    @tile.jit
    def kernel(x, s, out):
        a, b = tile.load(x), tile.load(s)
        m = a * b
        tile.store(out, tile.exp(m - a * b))

    out = poisoned(1, tile.float32)
    x, s = np.array([1134139801600], np.float32), np.array([0.18033688], np.float32)
    kernel[1,](x, s, out, fp_contract=False)
    check(out, np.ones(1, np.float32), "no contraction")

    @tile.jit
    def residue(x, y, z, out):
        tile.store(out, tile.load(x) * tile.load(y) - tile.load(z))

    x = np.array([1 + 2.0**-12], np.float32)
    out = poisoned(1, tile.float32)
    residue[1,](x, x, x * x, out, fp_contract=False)
    check(out, np.zeros(1, np.float32), "two roundings")


def test_literals_round_to_their_type_before_anything_folds(place: str) -> None:  # K052
    x = np.array([8388608.5], np.float32)
    assert run(tile.ceil, x, tile.float32)[0] == 8388608

    def folded(v):
        return tile.ceil(tile.full((), 8388608.5, tile.float32)) + v * 0

    assert run(folded, x, tile.float32)[0] == 8388608
    zero = np.zeros(1, np.float16)
    assert run(lambda v: tile.full((), 2049, tile.float16) + v, zero, tile.float16)[0] == 2048
    assert run(lambda v: v + 2049, zero, tile.float16)[0] == 2048
    one = np.ones(1, ml_dtypes.bfloat16)
    assert run(lambda v: tile.full((), 257, tile.bfloat16) * v, one, tile.bfloat16)[0] == 256


def test_scalars_are_packed_in_their_declared_type(place: str) -> None:  # K053
    @tile.jit
    def echo(a, out):
        tile.store(out, a)

    for kind in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        for value in (42.0, 65500.0, -1.5, float("inf"), float("nan")):
            out = np.full(1, 7, kind)
            scalar = np.array([value]).astype(kind)
            echo[1,](scalar[0], out)
            same = bits_of(out) == bits_of(scalar)
            assert same or (np.isnan(value) and np.isnan(float(out[0]))), (kind, value)

    @tile.jit
    def total(a, b, c, out):
        tile.store(out, a + b + c)

    for kind in (np.float16, np.float32, np.float64, np.int32):
        out = np.zeros(1, kind)
        total[1,](1, 1, 1, out)
        assert out[0] == 3


def test_index_arithmetic_is_never_silently_wrapped(place: str) -> None:  # K085
    @tile.jit
    def kernel(table, out, N: tile.constexpr):
        i = tile.program_id(0).to(tile.int64)
        j = tile.arange(0, N).to(tile.int64)
        at = ((i * 65537 + j) * 32769) % 4096
        tile.store(out + i * N + j, tile.load(table + at))

    table = np.random.default_rng(2).integers(0, 10**6, 4096, dtype=np.int32)
    out = poisoned(1024 * 1024, tile.int32)
    kernel[1024,](table, out, N=1024)
    i, j = np.arange(1024)[:, None], np.arange(1024)
    check(out, table[((i * 65537 + j) * 32769) % 4096], "int64 reference")


def test_shapes_broadcast_and_scalars_are_tiles_of_none(place: str) -> None:  # K094
    @tile.jit
    def kernel(s, out, N: tile.constexpr):
        i = tile.arange(0, N)
        scalar = tile.load(s, mask=tile.load(s) > 0)
        tile.store(out, tile.full([], 3, tile.int32) + tile.zeros_like(scalar))
        tile.store(out + 1 + i, scalar[None] + i)
        grid = scalar[None, None] + tile.zeros((2, N), tile.int32)
        tile.store(out + 1 + N + tile.arange(0, 2)[:, None] * N + i[None, :], grid + i + scalar)
        one = tile.zeros((1, 1), tile.int32)
        tile.store(out + 1 + 3 * N + one, scalar, mask=one == 0)

    out = poisoned(2 + 3 * 4, tile.int32)
    kernel[1,](np.array([5], np.int32), out, N=4)
    i = np.arange(4)
    expected = [[3], 5 + i, 10 + i, 10 + i, [5]]
    check(out, np.concatenate(expected).astype(np.int32), "0-d")


def test_random_floats_are_below_one_and_streams_agree(place: str) -> None:  # K095
    words = np.array([-(2**31), 2**31 - 1, 0, -1, -128, -129], np.int32)
    got = run(tile.uint_to_uniform_float, words, tile.float32)
    assert ((got >= 0) & (got < 1)).all()

    @tile.jit
    def draw(seed, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        tile.store(out + i, tile.rand(seed, i), mask=i < n)

    @tile.jit
    def bits(seed, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        tile.store(out + i, tile.randint(seed, i), mask=i < n)

    n = 1_000_000
    out = poisoned(n, tile.float32)
    draw[tile.cdiv(n, 1024),](7, out, n, BLOCK=1024)
    assert out[:n].min() >= 0
    assert out[:n].max() < 1
    assert abs(out[:n].mean() - 0.5) < 2e-3
    streams = []
    for seed in (7, 2**32 + 7, np.int64(7)):
        words = poisoned(1000, tile.int32)
        bits[1,](seed, words, 1000, BLOCK=1024)
        streams.append(words[:1000].copy())
    assert (streams[0] == streams[2]).all()
    assert (streams[0] != streams[1]).any()
    assert (streams[0] == philox(7, 1000)).all()


def test_normal_numbers_are_normal(place: str) -> None:
    @tile.jit
    def draw(seed, out, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        parts = (tile.randn(seed, i), *tile.randn4x(seed, i), *tile.rand4x(seed + 1, i))
        for row, part in enumerate(parts):
            tile.store(out + (row * tile.num_programs(0) * BLOCK + i), part)

    n = 64 * 1024
    out = poisoned(9 * n, tile.float32)
    draw[64,](3, out, BLOCK=1024)
    rows = out[: 9 * n].reshape(9, n).astype(np.float64)
    assert (rows[0] == rows[1]).all()
    assert np.abs(rows[1:5].mean(1)).max() < 0.02
    assert np.abs(rows[1:5].std(1) - 1).max() < 0.02
    assert np.abs(rows[1:5] > 3).mean() < 0.003
    assert np.abs(np.corrcoef(rows[1:]) - np.eye(8)).max() < 0.03


def philox(seed: int, count: int) -> np.ndarray:
    """Return the first word of Philox 4x32-10 of each counter, written down from the paper."""
    c = [np.arange(count, dtype=np.uint64)] + [np.zeros(count, np.uint64) for _ in range(3)]
    key, mask = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        low, high = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [(high >> shift) ^ c[1] ^ np.uint64(key[0]), high & mask,
             (low >> shift) ^ c[3] ^ np.uint64(key[1]), low & mask]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32).view(np.int32)


def test_samples_hold_what_they_promise() -> None:
    for dtype in (tile.float16, tile.float32, *FP8):
        x = sample(dtype, 4000)
        assert is_nan(x).any()
        assert (without_nan(x) == 0).any()
