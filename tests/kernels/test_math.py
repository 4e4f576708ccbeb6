"""Mathematical functions: 2 units in the last place over the whole range, specials exact."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import FLOATS, INTEGERS, cast, check, check_close, poisoned, sample
from tiledsl.dtypes import DType

N = 4000


@tile.jit
def apply(x, out, n, OPS: tile.constexpr, BLOCK: tile.constexpr):
    offsets = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    mask = offsets < n
    value = tile.load(x + offsets, mask=mask)
    for row, op in enumerate(OPS):
        result = op(value)
        tile.static_assert(result.dtype == out.dtype.element_ty)
        tile.store(out + row * n + offsets, result, mask=mask)


def wide_erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x.astype(np.float64)], np.longdouble)


def wide_sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": wide_erf,
    "sigmoid": wide_sigmoid,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "expm1": np.expm1,
    "log1p": np.log1p,
    "log10": np.log10,
}
EXACT: dict[str, Callable] = {
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "trunc": np.trunc,
    "rint": np.rint,
}


def arguments(dtype: DType, seed: int) -> np.ndarray:
    """Return values over the whole range of `dtype`, dense where the functions are interesting."""
    rng = np.random.default_rng(seed)
    everyday = [
        rng.uniform(-10, 10, N // 4),
        rng.uniform(-1, 1, N // 8),
        np.exp(rng.uniform(-20, 20, N // 8)),
        rng.uniform(-800, 800, N // 4),
    ]
    anywhere = sample(dtype, N - sum(part.size for part in everyday), seed)
    return np.concatenate([cast(np.concatenate(everyday), dtype), anywhere])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_right_to_two_units(place: str, name: str, dtype: DType) -> None:
    x = arguments(dtype, 1)
    if name in ("sin", "cos") and dtype is tile.float64:
        x = x[~(np.abs(x) > 1e9)]
    out = poisoned(x.size, dtype)
    apply[tile.cdiv(x.size, 1024),](x, out, x.size, OPS=(getattr(tile, name),), BLOCK=1024)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.longdouble))
    # A sigmoid is an exponential, a sum and a quotient: half a unit more for each of the last two.
    units = 3 if name == "sigmoid" else 2
    check_close(out, exact, units, f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exact_functions_are_correctly_rounded(place: str, dtype: DType) -> None:
    x = arguments(dtype, 2)
    out = poisoned(x.size * len(EXACT), dtype)
    ops = tuple(getattr(tile, name) for name in EXACT)
    apply[tile.cdiv(x.size, 1024),](x, out, x.size, OPS=ops, BLOCK=1024)
    for row, (name, numpy) in enumerate(EXACT.items()):
        with np.errstate(all="ignore"):
            expected = cast(numpy(x.astype(np.float64)), dtype)
        rows = out[row * x.size :]
        check(rows if row == len(EXACT) - 1 else rows[: x.size], expected, f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_functions_of_integers_are_floats(place: str, dtype: DType) -> None:
    wide = tile.float64 if dtype.primitive_bitwidth == 64 else tile.float32
    x = (np.arange(200) % 100).astype(dtype.numpy)
    out = poisoned(2 * x.size, wide)
    apply[(1,)](x, out, x.size, OPS=(tile.exp, tile.sqrt), BLOCK=256)
    with np.errstate(over="ignore"):
        check_close(out[: x.size], np.exp(x.astype(np.longdouble)), 2, f"exp of {dtype}")
    check(out[x.size :], np.sqrt(x.astype(wide.numpy)), f"sqrt of {dtype}")


def test_functions_of_scalars_are_those_of_tiles(place: str) -> None:
    @tile.jit
    def kernel(x, out, OPS: tile.constexpr):
        value = tile.load(x + tile.program_id(0))
        for row, op in enumerate(OPS):
            tile.store(out + row * tile.num_programs(0) + tile.program_id(0), op(value))

    x = np.array([0.0, -0.0, 0.5, -3.25, 30.0, np.inf, -np.inf, np.nan], np.float32)
    names = ["exp", "exp2", "sin", "cos", "tanh", "erf", "sigmoid", "floor", "ceil"]
    ops = tuple(getattr(tile, name) for name in names)
    scalars = poisoned(x.size * len(names), tile.float32)
    kernel[x.size,](x, scalars, OPS=ops)
    tiles = poisoned(x.size * len(names), tile.float32)
    apply[(1,)](x, tiles, x.size, OPS=ops, BLOCK=8)
    check(scalars, tiles[: x.size * len(names)], "scalars")


def test_fast_math_stays_near_and_keeps_nan(place: str) -> None:
    x = cast(np.linspace(-5, 5, 1000), tile.float32)
    x[::100] = np.nan
    names = ["exp", "sin", "tanh", "erf", "sigmoid"]
    out = poisoned(x.size * len(names), tile.float32)
    ops = tuple(getattr(tile, name) for name in names)
    apply[(1,)](x, out, x.size, OPS=ops, BLOCK=1024, fast_math=True)
    wide = x.astype(np.float64)
    for row, name in enumerate(names):
        got = out[row * x.size : (row + 1) * x.size]
        np.testing.assert_allclose(got, FUNCTIONS[name](wide), rtol=1e-3, atol=1e-5)


def test_cdiv_and_next_power_of_2_are_plain_python_too() -> None:
    assert [tile.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [tile.next_power_of_2(n) for n in (1, 2, 3, 1000)] == [1, 2, 4, 1024]
