"""Element types: names, sizes, promotion by JAX's table, the constexpr marker."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import dtypes as t
from tiledsl.dialects.diagnostics import KernelError

JAX: dict[str, str] = {
    # jax.numpy.promote_types with 64-bit types enabled, as documented in "Type promotion semantics".
    "bool": "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 bfloat16 float16 float32 float64",
    "uint8": "uint8 uint8 uint16 uint32 uint64 int16 int16 int32 int64 bfloat16 float16 float32 float64",
    "uint16": "uint16 uint16 uint16 uint32 uint64 int32 int32 int32 int64 bfloat16 float16 float32 float64",
    "uint32": "uint32 uint32 uint32 uint32 uint64 int64 int64 int64 int64 bfloat16 float16 float32 float64",
    "int8": "int8 int16 int32 int64 float32 int8 int16 int32 int64 bfloat16 float16 float32 float64",
    "int16": "int16 int16 int32 int64 float32 int16 int16 int32 int64 bfloat16 float16 float32 float64",
    "int32": "int32 int32 int32 int64 float32 int32 int32 int32 int64 bfloat16 float16 float32 float64",
    "int64": "int64 int64 int64 int64 float32 int64 int64 int64 int64 bfloat16 float16 float32 float64",
    "bfloat16": "bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 "
    "bfloat16 float32 float32 float64",
    "float16": "float16 float16 float16 float16 float16 float16 float16 float16 float16 float32 float16 "
    "float32 float64",
}  # fmt: skip
COLUMNS = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 bfloat16 float16 float32 float64"


def named(name: str) -> t.DType:
    return next(dtype for dtype in t.SCALARS if dtype.name == name)


@pytest.mark.parametrize("row", JAX)
def test_promotion_is_jaxs_table_and_symmetric(row: str) -> None:
    for column, wanted in zip(COLUMNS.split(), JAX[row].split(), strict=True):
        assert t.promote(named(row), named(column)) is named(wanted), (row, column)
        assert t.promote(named(column), named(row)) is named(wanted), (column, row)


def test_8_bit_floats_meet_no_other_float() -> None:
    assert t.promote(t.float8e4m3fn, t.float8e5m2) is None
    assert t.promote(t.float8e4m3fn, t.float32) is None
    assert t.promote(t.float8e4m3fn, t.int64) is t.float8e4m3fn
    assert t.promote(t.pointer_type(t.int8), t.int64) is None


@pytest.mark.parametrize(
    ("dtype", "scalars"),
    [
        (t.bool_, (t.bool_, t.int32, t.float32)),
        (t.uint8, (t.uint8, t.uint8, t.float32)),
        (t.int64, (t.int64, t.int64, t.float32)),
        (t.float16, (t.float16, t.float16, t.float16)),
        (t.float8e5m2, (t.float8e5m2, t.float8e5m2, t.float8e5m2)),
        (t.pointer_type(t.int8), (None, None, None)),
    ],
)
def test_python_scalars_are_weak(dtype: t.DType, scalars: tuple[t.DType | None, ...]) -> None:
    assert tuple(t.promote_weak(dtype, kind) for kind in (bool, int, float)) == scalars


def test_python_numbers_alone_take_32_bits_if_they_fit() -> None:
    numbers = (True, 2**31 - 1, 2**31, -(2**63), 2**63, 1.5)
    wanted = (t.bool_, t.int32, t.int64, t.int64, t.uint64, t.float32)
    assert tuple(map(t.default_dtype, numbers)) == wanted
    with pytest.raises(KernelError) as found:
        t.default_dtype(2**64)
    assert str(found.value) == (
        "expected an integer of at most 64 bits, found 18446744073709551616"
    )


def test_division_computes_in_a_float_type() -> None:
    kinds = (t.bool_, t.int8, t.uint32, t.int64, t.float16, t.float64)
    wanted = (t.float32, t.float32, t.float32, t.float64, t.float16, t.float64)
    assert tuple(map(t.to_inexact, kinds)) == wanted


@pytest.mark.parametrize("dtype", t.SCALARS, ids=str)
def test_each_type_knows_its_numpy_type_its_size_and_its_range(dtype: t.DType) -> None:
    assert dtype.numpy.itemsize == dtype.itemsize
    assert t.as_dtype(dtype.numpy) is dtype
    assert t.as_dtype(dtype.numpy.type) is dtype
    assert t.parse_dtype(dtype.signature) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    if dtype.is_floating():
        finfo: Any = getattr(ml_dtypes, "finfo")(dtype.numpy)  # noqa: B009 (untyped there)
        assert (float(finfo.min), float(finfo.max)) == (dtype.lowest, dtype.highest)
    elif dtype.is_int():
        info = np.iinfo(dtype.numpy)
        assert (int(info.min), int(info.max)) == (dtype.lowest, dtype.highest)


def test_kinds() -> None:
    assert [x.name for x in t.SCALARS if x.is_int_signed()] == ["int8", "int16", "int32", "int64"]
    assert all(x.is_int() and not x.is_bool() for x in t.SCALARS if x.is_int_unsigned())
    assert [x.name for x in t.SCALARS if x.is_fp8()] == ["float8e4m3fn", "float8e5m2"]
    assert t.bool_.holds(1)
    assert not t.bool_.holds(2)
    assert t.int8.holds(-128)
    assert not t.uint8.holds(-1)
    assert (t.int1, t.float8e4nv, t.float8e5) == (t.bool_, t.float8e4m3fn, t.float8e5m2)


def test_pointers_lead_to_elements() -> None:
    pointer = t.pointer_type(t.bfloat16)
    assert pointer is t.pointer_type(t.bfloat16)
    assert pointer is t.parse_dtype("*bf16")
    assert pickle.loads(pickle.dumps(pointer)) is pointer
    assert (pointer.element_ty, pointer.itemsize, pointer.is_ptr()) == (t.bfloat16, 8, True)
    assert (str(pointer), repr(pointer)) == (
        "pointer<bfloat16>",
        "tile.pointer_type(tile.bfloat16)",
    )
    with pytest.raises(KernelError) as found:
        _ = t.int32.element_ty
    assert str(found.value) == "expected a pointer type, found int32, which has no element type"


def test_what_means_a_type() -> None:
    assert [t.as_dtype(x) for x in (int, float, bool, np.float16, t.constexpr(t.int8))] == [
        t.int32, t.float32, t.bool_, t.float16, t.int8,
    ]  # fmt: skip
    for wrong in ("fp32", 3, None, str, np.dtype("M8[s]")):
        with pytest.raises(KernelError, match="expected a dtype, found"):
            t.as_dtype(wrong)
    with pytest.raises(KernelError, match=r"expected a type among i1, .*, found 'f32'"):
        t.parse_dtype("f32")


def test_a_constexpr_computes_as_the_value_in_it() -> None:
    four: Any = t.constexpr(t.constexpr(4))
    assert four.value == 4
    assert (four + 1, 1 + four, 9 - four, four // 3, -four, four**2, 2**four) == (
        5, 5, 5, 1, -4, 16, 16,
    )  # fmt: skip
    assert (four == 4, four != 4, four < 5, four > 4, four & 6, 1 << four) == (
        True, False, True, False, 4, 16,
    )  # fmt: skip
    assert list(range(four)) == [0, 1, 2, 3]
    assert (int(four), float(four), bool(t.constexpr(0)), hash(four)) == (4, 4.0, False, hash(4))
    assert (t.constexpr("ab").upper(), t.constexpr((1, 2))[four - 3]) == ("AB", 2)
    assert t.constexpr(abs)(-four) == 4
    assert repr(four) == "constexpr[4]"
    assert (t.unwrap(four), t.unwrap(5)) == (4, 5)
