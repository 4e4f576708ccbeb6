"""Vector float arithmetic: sums, products, fused multiply-adds, minima, rounding, transcendentals.

Tables are made for each width from one list of names; `floats` has the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.decode import Entry
from tiledsl.targets.amdgpu.emulator.functions import (
    Binary,
    Function,
    Ternary,
    multiply_add,
    nested,
)
from tiledsl.targets.amdgpu.emulator.vector import operation
from tiledsl.targets.gpu.emulator.fused import fused_multiply_add
from tiledsl.targets.gpu.emulator.program import InstructionClass

Array = NDArray[Any]

_FLOAT = InstructionClass.FLOAT
KINDS = ("f16", "f32", "f64")
FUSED: dict[str, Ternary] = {"f16": floats.fma16, "f32": floats.fma, "f64": fused_multiply_add}


def _op(result: str, sources: str, function: Function, accumulates: bool = False) -> Entry:
    return operation(result, sources, function, _FLOAT, accumulates=accumulates)


def _reverse_subtract(a: Array, b: Array) -> Array:
    return b - a


def _multiply_zero(a: Array, b: Array) -> Array:
    """Multiply where 0 times anything is 0 (DirectX 9)."""
    return np.where((a == 0) | (b == 0), a.dtype.type(0), a * b)


def _fused_zero(a: Array, b: Array, c: Array) -> Array:
    """Multiply and add where 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), c, floats.fma(a, b, c))


def median(least: Binary, most: Binary) -> Ternary:
    """Return the median of three; with a NaN among them the least number, as v_med3 does."""

    def function(a: Array, b: Array, c: Array) -> Array:
        middle = most(least(a, b), least(most(a, b), c))
        any_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.asarray(np.where(any_nan, least(least(a, b), c), middle), a.dtype)

    return function


def _arithmetic_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for kind in KINDS:
        two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
        fused = FUSED[kind]
        for name, function in {"add": np.add, "mul": np.multiply, "sub": np.subtract}.items():
            table[f"v_{name}_{kind}"] = _op(kind, two, function)
        table[f"v_subrev_{kind}"] = _op(kind, two, _reverse_subtract)
        table[f"v_fma_{kind}"] = _op(kind, three, fused)
        table[f"v_fmac_{kind}"] = _op(kind, three, fused, accumulates=True)
        table[f"v_mad_{kind}"] = _op(kind, three, multiply_add)
        table[f"v_mac_{kind}"] = _op(kind, three, multiply_add, accumulates=True)
        for name, function in {"fma": fused, "mad": multiply_add}.items():
            table[f"v_{name}ak_{kind}"] = _op(kind, three, function)
            # The constant multiplies: v_fmamk d, a, K, b is a * K + b.
            table[f"v_{name}mk_{kind}"] = _op(kind, three, function)
        table[f"v_ldexp_{kind}"] = _op(
            kind, f"{kind} {'i16' if kind == 'f16' else 'i32'}", floats.scale
        )
    # The legacy forms of float16 differ in what they do to the other half of the register.
    for name in ("v_mad", "v_fma"):
        table[f"{name}_legacy_f16"] = table[f"{name}_f16"]
    table["v_fma_legacy_f32"] = table["v_fma_dx9_zero_f32"] = _op("f32", "f32 f32 f32", _fused_zero)
    for name in ("v_mul_legacy_f32", "v_mul_dx9_zero_f32"):
        table[name] = _op("f32", "f32 f32", _multiply_zero)
    return table


def _choice_table() -> dict[str, Entry]:
    """Return minima, maxima and medians under all of their names."""
    least, most = floats.minimum_number, floats.maximum_number
    low, high = floats.minimum, floats.maximum
    table: dict[str, Entry] = {}
    for kind in KINDS:
        two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
        for spelled in ("", "_num"):
            table |= {
                f"v_min{spelled}_{kind}": _op(kind, two, least),
                f"v_max{spelled}_{kind}": _op(kind, two, most),
                f"v_min3{spelled}_{kind}": _op(kind, three, nested(least, least)),
                f"v_max3{spelled}_{kind}": _op(kind, three, nested(most, most)),
                f"v_med3{spelled}_{kind}": _op(kind, three, median(least, most)),
                f"v_minmax{spelled}_{kind}": _op(kind, three, nested(most, least)),
                f"v_maxmin{spelled}_{kind}": _op(kind, three, nested(least, most)),
            }
        table |= {
            f"v_minimum_{kind}": _op(kind, two, low),
            f"v_maximum_{kind}": _op(kind, two, high),
            f"v_minimum3_{kind}": _op(kind, three, nested(low, low)),
            f"v_maximum3_{kind}": _op(kind, three, nested(high, high)),
            f"v_minimummaximum_{kind}": _op(kind, three, nested(high, low)),
            f"v_maximumminimum_{kind}": _op(kind, three, nested(low, high)),
        }
    return table


def _function_table() -> dict[str, Entry]:
    """Return functions of one source."""
    table: dict[str, Entry] = {}
    for kind in KINDS:
        for name, function in {
            "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rndne": np.rint,
            "fract": floats.fraction, "frexp_mant": floats.mantissa,
        }.items():  # fmt: skip
            table[f"v_{name}_{kind}"] = _op(kind, kind, function)
        count = "i16" if kind == "f16" else "i32"
        table[f"v_frexp_exp_{count}_{kind}"] = _op(count, kind, floats.binary_exponent)
        names = ("rcp", "rsq", "sqrt") if kind == "f64" else tuple(floats.FUNCTIONS)
        for name in names:
            table[f"v_{name}_{kind}"] = _op(kind, kind, floats.unit_function(name, kind))
    table["v_rcp_iflag_f32"] = table["v_rcp_f32"]
    return table


TABLE: dict[str, Entry] = {**_arithmetic_table(), **_choice_table(), **_function_table()}
