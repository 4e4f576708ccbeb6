"""Run straight-line functions of `arith`, `math` and elementwise `tile` ops on NumPy arrays.

The oracle's side of tests of passes that rewrite arithmetic: the rewritten function runs here, op
by op and elementwise, and its results meet the real ones. Tiles and vectors are arrays of their
shape, scalars arrays of shape (). Ints are held as signed arrays of their width, bools as bool;
bf16 and fp8 are `ml_dtypes` arrays. `call` follows calls and constants, not control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from mlir import ir

from tiledsl.transforms.lanes import element

Array = np.ndarray[Any, Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


def dtype_of(type_: ir.Type) -> np.dtype[Any]:
    """Return the NumPy dtype of a type's elements."""
    return DTYPES[str(element(type_))]


def call(module: ir.Module, name: str, *arguments: Array) -> Any:
    """Run a function of `module`; gives its one result, or a tuple of them.

    Args:
        module: Where it is defined.
        name: Its symbol.
        arguments: One array each, of the declared element type; any shape, which stands for the
            declared one, so that one compiled function is tried on many values.
    """
    functions = {
        str(op.operation.attributes["sym_name"])[1:-1]: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    with np.errstate(all="ignore"):
        results = _run(functions, name, arguments)
    return results[0] if len(results) == 1 else tuple(results)


def _run(functions: dict[str, Any], name: str, arguments: Sequence[Array]) -> list[Array]:
    block = functions[name].operation.regions[0].blocks[0]
    values: dict[ir.Value, Array] = dict(zip(block.arguments, arguments, strict=True))
    for op in block.operations:
        operands = [values[operand] for operand in op.operation.operands]
        kind = op.operation.name
        if kind == "func.return":
            return operands
        if kind == "func.call":
            callee = str(op.operation.attributes["callee"])[1:]
            results = _run(functions, callee, operands)
        else:
            results = [evaluate(op, operands)]
        for result, array in zip(op.operation.results, results, strict=True):
            values[result] = array
    raise AssertionError("a function ends in a return")


def evaluate(op: ir.OpView, operands: list[Array]) -> Array:
    """Give the result of one elementwise op, or of a constant."""
    kind = op.operation.name
    to = dtype_of(op.operation.results[0].type)
    if kind == "arith.constant":
        return _constant(op, to)
    if kind in ("arith.cmpf", "arith.cmpi"):
        predicate = ir.IntegerAttr(op.operation.attributes["predicate"]).value
        return _compare(kind, predicate, *operands)
    if kind in _CONVERSIONS:
        return _CONVERSIONS[kind](operands[0], to)
    if kind == "tile.cast":
        signed = (
            ir.BoolAttr(op.operation.attributes["signed"]).value
            if ("signed" in op.operation.attributes)
            else True
        )
        return cast(operands[0], to, signed)
    table: dict[str, Callable[..., Any]] = {**_UNARY, **_BINARY, **_TERNARY}
    function = table[kind]
    return np.asarray(function(*operands)).astype(to, copy=False)


def _constant(op: ir.OpView, to: np.dtype[Any]) -> Array:
    attribute: Any = op.operation.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        attribute = attribute.get_splat_value()
    value = attribute.value
    if to.kind == "i":
        bits = 8 * to.itemsize
        value = (int(value) + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    return np.array(value).astype(to)


def _unsigned(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}")) if x.dtype.kind == "i" else x


def _compare(kind: str, predicate: int, a: Array, b: Array) -> Array:
    if kind == "arith.cmpf":
        ordered = ~(np.isnan(a) | np.isnan(b))
        table: list[Callable[[], Any]] = [
            lambda: np.zeros_like(ordered),
            lambda: a == b,
            lambda: a > b,
            lambda: a >= b,
            lambda: a < b,
            lambda: a <= b,
            lambda: ordered & (a != b),
            lambda: ordered,
            lambda: ~ordered | (a == b),
            lambda: ~(a <= b),
            lambda: ~(a < b),
            lambda: ~(a >= b),
            lambda: ~(a > b),
            lambda: a != b,
            lambda: ~ordered,
        ]
        return np.asarray(table[predicate]())
    if predicate >= 6:
        a, b = _unsigned(a), _unsigned(b)
    functions = (
        np.equal,
        np.not_equal,
        *2 * (np.less, np.less_equal, np.greater, np.greater_equal),
    )
    return np.asarray(functions[predicate](a, b))


def cast(x: Array, to: np.dtype[Any], signed: bool = True) -> Array:
    """Do `tile.cast`: nearest even, fp8 saturated; to ints toward zero, saturated, NaN to 0."""
    if to.kind in "ib":
        bits = 8 * to.itemsize
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        wide = np.trunc(x.astype(np.float64))
        ints = [0 if np.isnan(v) else int(min(max(v, low), high)) for v in wide.ravel()]
        return (
            np.array([(v + 2**63) % 2**64 - 2**63 for v in ints], np.int64)
            .astype(to)
            .reshape(x.shape)
        )
    if to in (DTYPES["f8E4M3FN"], DTYPES["f8E5M2"]):
        largest = 448.0 if to == DTYPES["f8E4M3FN"] else 57344.0
        wide = x.astype(np.float64)
        return np.clip(wide, -largest, largest).astype(x.dtype).astype(to)
    return x.astype(to)


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype != np.float64:
        return _odd_sum(a.astype(np.float64) * b.astype(np.float64), c).astype(a.dtype)
    product = a * b
    low = _product_error(a, b, product)
    total = product + c
    back = total - product
    low = low + ((product - (total - back)) + (c - back))
    # Adding a zero would lose the sign of a zero total.
    inexact = np.isfinite(product) & np.isfinite(total) & np.isfinite(low) & (low != 0)
    return np.where(inexact, total + low, total)


def _odd_sum(a: Array, b: Array) -> Array:
    """Return a + b rounded to odd (Boldo and Melquiond): rounding it again is rounding once."""
    b = b.astype(np.float64)
    total = a + b
    back = total - a
    low = (a - (total - back)) + (b - back)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & np.isfinite(low) & (low != 0)
    return np.where(inexact & even, np.nextafter(total, np.copysign(np.inf, low)), total)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """Return a * b - product (Dekker)."""

    def halves(x: Array) -> tuple[Array, Array]:
        big = x * 134217729.0
        high = big - (big - x)
        return high, x - high

    (a1, a2), (b1, b2) = halves(a), halves(b)
    return ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _shift(function: Callable[[Any, Any], Any], unsigned: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        assert np.all((_unsigned(b) >= 0) & (_unsigned(b) < 8 * a.dtype.itemsize)), "poison"
        left = _unsigned(a) if unsigned else a
        return np.asarray(function(left, b.astype(left.dtype))).view(a.dtype)

    return shift


def _nan_to(function: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(function(a, b)).astype(a.dtype)


def _leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    return np.array([bits - int(v).bit_length() for v in _unsigned(x).ravel()]).reshape(x.shape)


def _fp_to_int(x: Array, to: np.dtype[Any]) -> Array:
    wide = np.trunc(x.astype(np.float64))
    half = 2.0 ** (8 * to.itemsize - 1)
    assert np.all((wide >= -half) & (wide < half)), "poison"
    return wide.astype(to)


def _fp_to_unsigned(x: Array, to: np.dtype[Any]) -> Array:
    wide = np.trunc(x.astype(np.float64))
    assert np.all((wide >= 0) & (wide < 2.0 ** (8 * to.itemsize))), "poison"
    return wide.astype(np.dtype(f"u{to.itemsize}")).view(to)


_CONVERSIONS: dict[str, Callable[[Array, np.dtype[Any]], Array]] = {
    "arith.bitcast": lambda x, to: x.view(to),
    "tile.bitcast": lambda x, to: x.view(to),
    "arith.extf": lambda x, to: x.astype(to),
    "arith.truncf": lambda x, to: x.astype(to),
    "arith.extsi": lambda x, to: (-x.astype(to)) if x.dtype == np.bool_ else x.astype(to),
    "arith.extui": lambda x, to: _unsigned(x).astype(to),
    "arith.trunci": lambda x, to: (x & 1).astype(to) if to == np.bool_ else x.astype(to),
    "arith.sitofp": lambda x, to: x.astype(to),
    "arith.uitofp": lambda x, to: _unsigned(x).astype(to),
    "arith.fptosi": _fp_to_int,
    "arith.fptoui": _fp_to_unsigned,
}

_UNARY: dict[str, Callable[[Array], Any]] = {
    "arith.negf": lambda a: -a,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.ctlz": _leading_zeros,
    "math.sqrt": np.sqrt,
    "math.exp2": np.exp2,
    "math.log2": np.log2,
    "math.exp": np.exp,
    "math.log": np.log,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.roundeven": np.rint,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
}
_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "arith.addf": lambda a, b: a + b,
    "arith.addi": lambda a, b: a + b,
    "arith.subf": lambda a, b: a - b,
    "arith.subi": lambda a, b: a - b,
    "arith.mulf": lambda a, b: a * b,
    "arith.muli": lambda a, b: a * b,
    "arith.divf": lambda a, b: a / b,
    "arith.remf": np.fmod,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": _shift(np.left_shift, unsigned=False),
    "arith.shrsi": _shift(np.right_shift, unsigned=False),
    "arith.shrui": _shift(np.right_shift, unsigned=True),
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minui": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)),
    "arith.maxui": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)),
    "arith.minimumf": _nan_to(np.minimum),
    "arith.maximumf": _nan_to(np.maximum),
    "arith.minnumf": _nan_to(np.fmin),
    "arith.maxnumf": _nan_to(np.fmax),
    "math.copysign": np.copysign,
}
_TERNARY: dict[str, Callable[[Array, Array, Array], Any]] = {
    "arith.select": np.where,
    "math.fma": _fma,
}
