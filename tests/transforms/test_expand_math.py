"""The formulas of expand_math against NumPy in twice the precision, over the whole range."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mlir import ir

from tests.transforms.arith_evaluator import DTYPES, Array, call
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.transforms.expand_math import EVERYWHERE, Natives, expand_math

EXP2 = frozenset({("math.exp2", "f32")})
Wide = np.longdouble


def expanded(
    op: str,
    kind: str,
    native: Natives = frozenset(),
    approximate: Natives = frozenset(),
    flags: str = "",
    tile: str = "tensor<8x{}>",
) -> ir.Module:
    """Return a function @f of one op, expanded and checked."""
    type_ = tile.format(kind)
    module = parse(
        f"func.func @f(%x: {type_}) -> {type_} {{ %y = {op} %x {flags} : {type_}\n"
        f"return %y : {type_} }}"
    )
    with module.context, ir.Location.unknown():
        expand_math(module, native, approximate)
    level = contracts.MACHINE if "vector" in tile else contracts.TILE
    contracts.check(module, level)
    return module


def op_names(module: ir.Module) -> list[str]:
    """Return the names of the ops that compute, constants aside."""
    names = [op.operation.name for op in contracts.operations(module.operation)]
    return [n for n in names if not n.startswith("func.") and n != "arith.constant"]


def error_function(x: Array) -> Array:
    """Return erf in x's precision: a series of positive terms, so that nothing cancels."""
    a: Array = np.minimum(np.abs(x), 7)
    term: Array = a
    total: Array = a
    for n in range(1, 350):
        term = term * (2 * a * a / (2 * n + 1))
        total = total + term
    root_pi = np.sqrt(Wide(math.pi) + Wide(1.2246467991473532e-16))
    value = total * np.exp(-a * a) * 2 / root_pi
    return np.copysign(value, x)


REFERENCE: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "erf": error_function,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


def arguments(dtype: np.dtype[Any], count: int) -> Array:
    """Return random bit patterns, the ranges where the functions do something, and edge cases."""
    rng = np.random.default_rng(7)
    info = np.finfo(dtype)
    bits = np.dtype(f"i{dtype.itemsize}")
    patterns = rng.integers(np.iinfo(bits).min, np.iinfo(bits).max, count, dtype=bits).view(dtype)
    edges = [0.0, 1.0, 0.5, 2.0, 3.0, 1e30, math.inf, math.nan, math.pi, math.log(2), 0.55]
    edges += [info.tiny, info.smallest_subnormal, info.max, info.eps, 150.0, 127.5, 1023.5, 88.72]
    return np.concatenate(
        [
            patterns,
            rng.uniform(-10, 10, count),
            rng.uniform(-1.1, 1.1, count),
            rng.uniform(-160, 160, count // 2),
            rng.uniform(-1100, 1100, count // 2),
            1 + rng.uniform(-1e-3, 1e-3, count // 2),
            np.outer([1, -1], edges).ravel(),
            # Close to multiples of pi/2, where reduction cancels most.
            np.round(rng.uniform(0, 1e6, count // 4)) * (math.pi / 2),
        ]
    ).astype(dtype)


def worst_ulp(x: Array, got: Array, exact: Array) -> tuple[float, Any]:
    """Return the largest error in units of the last place, and where it is."""
    rounded = exact.astype(got.dtype)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.abs(got.astype(Wide) - exact) / np.spacing(np.abs(rounded)).astype(Wide)
    error = np.where(same & ~np.isfinite(rounded), 0, np.where(np.isnan(error), np.inf, error))
    at = int(np.argmax(error))
    return float(error[at]), x[at]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", list(REFERENCE))
def test_a_formula_is_within_two_ulp_everywhere(name: str, kind: str) -> None:
    count = 2000 if name == "erf" else 20000
    with np.errstate(all="ignore"):
        x = arguments(DTYPES[kind], count)
        exact = REFERENCE[name](x.astype(np.float64 if kind == "f32" else Wide).astype(Wide))
        got = call(expanded(f"math.{name}", kind), "f", x)
        error, at = worst_ulp(x, got, exact)
    assert error <= 2, f"{error} ulp at {at!r}"
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(got[number]), np.signbit(exact[number]))


@pytest.mark.parametrize("name", ["exp", "tanh", "erf"])
def test_a_formula_over_native_exp2_is_within_two_ulp(name: str) -> None:
    with np.errstate(all="ignore"):
        x = arguments(DTYPES["f32"], 2000 if name == "erf" else 20000)
        got = call(expanded(f"math.{name}", "f32", EXP2), "f", x)
        error, at = worst_ulp(x, got, REFERENCE[name](x.astype(Wide)))
    assert error <= 2, f"{error} ulp at {at!r}"


def test_known_hard_arguments_of_sine_reduce_right() -> None:
    # The f64 and f32 numbers closest to a multiple of pi/2 (Muller, Elementary Functions).
    f64 = call(expanded("math.cos", "f64"), "f", np.array([6381956970095103.0 * 2.0**797]))
    assert abs(float(f64[0]) / -4.6871659242546276e-19 - 1) <= 2**-52
    f32 = call(expanded("math.cos", "f32"), "f", np.array([16367173.0 * 2.0**72], np.float32))
    exact = np.cos(np.array(16367173.0 * 2.0**72, Wide))
    assert abs(float(f32[0]) / float(exact) - 1) < 2**-23


def test_exp2_of_an_integer_is_exact() -> None:
    for kind, low in (("f32", -149), ("f64", -1074)):
        n = np.arange(low, -low // 2).astype(DTYPES[kind])
        got = call(expanded("math.exp2", kind), "f", n)
        assert np.array_equal(got, np.exp2(n))


@pytest.mark.parametrize(
    ("name", "kind", "native", "most"),
    [
        ("exp", "f32", EXP2, 12),
        ("exp", "f32", frozenset[tuple[str, str]](), 24),
        ("log", "f32", frozenset[tuple[str, str]](), 36),
        ("erf", "f32", EXP2, 21),
        ("erf", "f32", frozenset[tuple[str, str]](), 48),
        ("sin", "f32", frozenset[tuple[str, str]](), 90),
        ("rsqrt", "f32", frozenset[tuple[str, str]](), 2),
    ],
)
def test_a_formula_stays_short(name: str, kind: str, native: Natives, most: int) -> None:
    assert len(op_names(expanded(f"math.{name}", kind, native))) <= most


def test_a_native_op_stays() -> None:
    assert op_names(expanded("math.exp2", "f32", EXP2)) == ["math.exp2"]
    assert "math.exp2" not in op_names(expanded("math.exp2", "f64", EXP2))


@pytest.mark.parametrize("name", ["floor", "ceil", "sqrt", "absf", "roundeven", "trunc"])
def test_what_every_target_has_stays(name: str) -> None:
    assert f"math.{name}" in EVERYWHERE
    assert op_names(expanded(f"math.{name}", "f32")) == [f"math.{name}"]


def test_only_afn_lets_approximate_instructions_in() -> None:
    tanh = frozenset({("math.tanh", "f32")})
    flags = "fastmath<afn>"
    assert op_names(expanded("math.tanh", "f32", approximate=tanh, flags=flags)) == ["math.tanh"]
    assert "math.tanh" not in op_names(expanded("math.tanh", "f32", approximate=tanh))
    fast = op_names(expanded("math.exp", "f32", approximate=EXP2, flags=flags))
    assert fast == ["arith.mulf", "math.exp2"]
    assert len(op_names(expanded("math.erf", "f32", approximate=EXP2, flags=flags))) == 9


@pytest.mark.parametrize("name", ["exp", "tanh"])
def test_what_may_be_approximate_goes_through_an_approximate_power(name: str) -> None:
    text = str(expanded(f"math.{name}", "f32", approximate=EXP2, flags="fastmath<afn>"))
    assert re.findall(r"math.exp2 %\w+ (fastmath<\w+>)?", text) == ["fastmath<afn>"]


@pytest.mark.parametrize("name", ["exp", "tanh", "log", "log10", "sin", "cos"])
def test_an_approximate_formula_is_close(name: str) -> None:
    native = EXP2 | {("math.log2", "f32")}
    x = np.random.default_rng(1).uniform(0.01, 50, 5000).astype(np.float32)
    got = call(expanded(f"math.{name}", "f32", native, flags="fastmath<afn>"), "f", x)
    np.testing.assert_allclose(got, REFERENCE[name](x.astype(np.float64)), rtol=1e-5, atol=3e-7)


def test_the_short_erf_is_close_everywhere() -> None:
    with np.errstate(all="ignore"):
        x = arguments(DTYPES["f32"], 2000)
        got = call(expanded("math.erf", "f32", EXP2, flags="fastmath<afn>"), "f", x)
    exact = REFERENCE["erf"](x.astype(Wide))
    number = ~np.isnan(exact)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.abs(got - exact)[number].max() < 2**-20
    assert np.array_equal(np.signbit(got[number]), np.signbit(exact[number]))


@pytest.mark.parametrize("scale", [0.70710678, 3.0, 1e-9])
@pytest.mark.parametrize("magnitude", [False, True], ids=["signed", "magnitude"])
def test_the_short_erf_takes_a_constant_and_a_magnitude_in(scale: float, magnitude: bool) -> None:
    module = parse(f"""
      func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> {{
        %c = arith.constant dense<{scale:e}> : tensor<8xf32>
        %m = math.absf %x : tensor<8xf32>
        %s = arith.mulf %c, {"%m" if magnitude else "%x"} : tensor<8xf32>
        %y = math.erf %s fastmath<afn> : tensor<8xf32>
        return %y : tensor<8xf32>
      }}""")
    with module.context, ir.Location.unknown():
        expand_math(module, EXP2)
    assert op_names(module).count("math.copysign") == (0 if magnitude and scale > 1e-3 else 1)
    x = np.random.default_rng(3).uniform(-6, 6, 2000).astype(np.float32)
    exact = REFERENCE["erf"]((np.abs(x) if magnitude else x).astype(Wide) * Wide(scale))
    assert np.abs(call(module, "f", x) - exact).max() < 2**-20


@pytest.mark.parametrize("tile", ["{}", "vector<8x{}>", "tensor<2x4x{}>"])
@pytest.mark.parametrize("name", ["exp", "sin", "log"])
def test_scalars_and_vectors_expand_as_tiles_do(name: str, tile: str) -> None:
    x = np.linspace(0.1, 20, 8)
    module = expanded(f"math.{name}", "f64", tile=tile)
    np.testing.assert_allclose(call(module, "f", x), REFERENCE[name](x), rtol=1e-15)


def test_a_layout_is_kept() -> None:
    module = parse(
        "func.func @f(%x: tensor<8xf32, @l>) -> tensor<8xf32, @l> {"
        "%y = math.exp %x : tensor<8xf32, @l>\n return %y : tensor<8xf32, @l> }"
    )
    with module.context, ir.Location.unknown():
        expand_math(module)
    module.operation.verify()
    assert "math.exp" not in op_names(module)


def test_an_op_without_a_formula_is_a_bug_with_its_name() -> None:
    with pytest.raises(CompilerBug, match=r"^expected a formula for math.cbrt on f32, found none$"):
        expanded("math.cbrt", "f32")
    with pytest.raises(CompilerBug, match=r"^expected a formula for math.exp on bf16, found none$"):
        expanded("math.exp", "bf16")


# --- the remainder of floats ---------------------------------------------------------------------


def remainder_of(kind: str, visibility: str = "") -> ir.Module:
    """Return a function @f of arith.remf, expanded."""
    module = parse(
        f"func.func {visibility} @f(%x: {kind}, %y: {kind}) -> {kind} {{"
        f"%z = arith.remf %x, %y : {kind}\nreturn %z : {kind} }}"
    )
    with module.context, ir.Location.unknown():
        expand_math(module)
    contracts.check(module, contracts.TILE)
    return module


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_remainder_is_exact_for_every_pair(kind: str) -> None:
    rng = np.random.default_rng(11)
    with np.errstate(all="ignore"):
        x = arguments(DTYPES[kind], 4000)
        y = rng.permutation(x)
        y[: len(y) // 2] = rng.choice(
            [1.0, 3.0, 0.1, -7.0, math.pi, 0.0, 1e-40, 5e-324], len(y) // 2
        )
        want = np.fmod(x, y)
    # The straight form is what the evaluator can run; the loop repeats the same step.
    got = call(remainder_of(kind, "private"), "f", x, y)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def test_a_remainder_loops_but_in_combine_functions() -> None:
    assert op_names(remainder_of("f32")).count("scf.for") == 1
    assert "scf.for" not in op_names(remainder_of("f32", "private"))


def test_a_remainder_s_loop_does_what_its_straight_form_does() -> None:
    x = np.array([1e30, -7.5, 3.4e38, 1e-40, 5.0], np.float32)
    y = np.array([0.3, 2.0, 1e-45, 3e-45, np.inf], np.float32)
    machine = Machine(Memory([]))
    [got] = machine.run(remainder_of("f32"), x, y)
    np.testing.assert_array_equal(got, np.fmod(x, y))
