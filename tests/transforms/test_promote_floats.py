"""Arithmetic on small floats through f32: NumPy's results, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from mlir import ir

from tests.transforms.arith_evaluator import DTYPES, Array, call
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.transforms.promote_floats import promote_floats

SMALL = ("f16", "bf16", "f8E4M3FN", "f8E5M2")


def promoted(text: str, native: frozenset[str] = frozenset({"f32", "f64"})) -> ir.Module:
    module = parse(text)
    with module.context, ir.Location.unknown():
        promote_floats(module, native)
    contracts.check(module, contracts.TILE)
    return module


def binary(op: str, kind: str) -> str:
    t = f"tensor<8x{kind}>"
    return f"func.func @f(%x: {t}, %y: {t}) -> {t} {{ %z = {op} %x, %y : {t}\nreturn %z : {t} }}"


def unary(op: str, kind: str) -> str:
    t = f"tensor<8x{kind}>"
    return f"func.func @f(%x: {t}) -> {t} {{ %z = {op} %x : {t}\nreturn %z : {t} }}"


def op_names(module: ir.Module) -> list[str]:
    names = [op.operation.name for op in contracts.operations(module.operation)]
    return [n for n in names if not n.startswith("func.")]


def pairs(kind: str) -> tuple[Array, Array]:
    """Return random pairs of codes that are no signalling NaN."""
    dtype = DTYPES[kind]
    codes = np.random.default_rng(2).integers(0, 1 << (8 * dtype.itemsize), (2, 20_000))
    x, y = codes.astype(f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        number = np.isfinite(x.astype(np.float32)) & np.isfinite(y.astype(np.float32))
    return x[number], y[number]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_an_operation_rounds_once(op: str, kind: str) -> None:
    x, y = pairs(kind)
    got = call(promoted(binary(f"arith.{op}f", kind)), "f", x, y)
    with np.errstate(all="ignore"):
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
        want = function(x, y)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("op", ["maximumf", "minimumf"])
def test_extrema_are_exact(op: str, kind: str) -> None:
    x, y = pairs(kind)
    got = call(promoted(binary(f"arith.{op}", kind)), "f", x, y).astype(np.float32)
    function = np.maximum if op == "maximumf" else np.minimum
    np.testing.assert_array_equal(got, function(x.astype(np.float32), y.astype(np.float32)))


@pytest.mark.parametrize("kind", SMALL)
def test_signs_are_changed_on_the_bits(kind: str) -> None:
    dtype = DTYPES[kind]
    x = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    sign = 1 << (8 * dtype.itemsize - 1)
    integer = f"u{dtype.itemsize}"
    negated = call(promoted(unary("arith.negf", kind)), "f", x).view(integer)
    np.testing.assert_array_equal(negated, x.view(integer) ^ sign)
    magnitude = call(promoted(unary("math.absf", kind)), "f", x).view(integer)
    np.testing.assert_array_equal(magnitude, x.view(integer) & (sign - 1))
    assert "arith.extf" not in op_names(promoted(unary("math.absf", kind)))


def test_comparisons_keep_their_predicate_and_give_bools() -> None:
    t = "tensor<8xbf16>"
    module = promoted(
        f"func.func @f(%x: {t}, %y: {t}) -> tensor<8xi1> {{ %z = arith.cmpf ult, %x, %y : {t}\n"
        "return %z : tensor<8xi1> }"
    )
    x, y = pairs("bf16")
    np.testing.assert_array_equal(call(module, "f", x, y), x < y)


def test_flags_are_kept() -> None:
    t = "tensor<8xbf16>"
    module = promoted(
        f"func.func @f(%x: {t}) -> {t} {{ %z = arith.mulf %x, %x fastmath<contract> : {t}\n"
        f"return %z : {t} }}"
    )
    assert "arith.mulf %0, %1 fastmath<contract> : tensor<8xf32>" in str(module)


def test_an_integer_goes_through_f32() -> None:
    module = promoted(
        "func.func @f(%x: tensor<8xi32>) -> tensor<8xbf16> {"
        "%z = arith.sitofp %x : tensor<8xi32> to tensor<8xbf16>\nreturn %z : tensor<8xbf16> }"
    )
    x = np.array([257, 259, -259, 33000, 1, 0], np.int32)
    assert call(module, "f", x).astype(np.float32).tolist() == [256, 260, -260, 33024, 1, 0]


def test_combine_functions_are_promoted() -> None:
    module = promoted(
        "func.func private @c(%a: f16, %b: f16) -> f16 {"
        "%s = arith.addf %a, %b : f16\nreturn %s : f16 }"
    )
    assert op_names(module) == ["arith.extf", "arith.extf", "arith.addf", "tile.cast"]


def test_native_types_and_moves_stay() -> None:
    assert op_names(promoted(binary("arith.addf", "f16"), frozenset({"f16", "f32"}))) == [
        "arith.addf"
    ]
    t = "tensor<8xbf16>"
    module = promoted(
        f"func.func @f(%c: tensor<8xi1>, %x: {t}, %y: {t}) -> {t} {{"
        f"%z = arith.select %c, %x, %y : tensor<8xi1>, {t}\nreturn %z : {t} }}"
    )
    assert op_names(module) == ["arith.select"]


@pytest.mark.parametrize("text", [unary("math.exp", "f16"), binary("arith.remf", "f16")])
def test_functions_are_computed_in_f32_whatever_is_native(text: str) -> None:
    names = op_names(promoted(text, frozenset({"f16", "f32"})))
    assert {"arith.extf", "tile.cast"} < set(names)


def test_math_is_promoted_too() -> None:
    names = op_names(promoted(unary("math.exp", "bf16")))
    assert names == ["arith.extf", "math.exp", "tile.cast"]
