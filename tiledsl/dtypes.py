"""Element types, how they promote, and the `constexpr` marker.

A `DType` is one object a type, compared by identity. Names are NumPy's (`int32`, `bfloat16`),
Triton's other names are aliases; `signature` is the spelling of `tiledsl.specialize` ("i32"). MLIR
does not know signedness; a `DType` does, so it goes with every value of the front end.

Promotion is JAX's table with 64-bit types enabled and 32-bit defaults: a Python scalar is *weak*,
it takes the other operand's type and may change its kind, never its width; an integer never widens
a float; float16 with bfloat16 gives float32; an fp8 type meets no other float. Two functions are
the table: `promote` for two types, `promote_weak` for a type and a Python scalar.

No MLIR here: `tiledsl.language.types` gives the MLIR type of a `DType`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from tiledsl.dialects.diagnostics import KernelError


class DType:
    """An element type.

    Attributes:
        name: As messages show it, NumPy's name: "float32".
        kind: "bool", "int", "uint", "float" or "pointer".
        primitive_bitwidth: Bits of a value: 1 for a bool, 64 for a pointer.
        signature: As signatures spell it: "fp32", "*fp32".
    """

    def __init__(self, name: str, kind: str, bits: int, signature: str) -> None:
        self.name = name
        self.kind = kind
        self.primitive_bitwidth = bits
        self.signature = signature

    def __repr__(self) -> str:
        return f"tile.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return parse_dtype, (self.signature,)

    @property
    def scalar(self) -> DType:
        """Itself: Triton's name for a tile type's element type."""
        return self

    @property
    def itemsize(self) -> int:
        """Bytes in memory; a bool takes one."""
        return max(8, self.primitive_bitwidth) // 8

    @property
    def element_ty(self) -> DType:
        """What a pointer leads to.

        Raises:
            KernelError: This is no pointer type.
        """
        raise KernelError(f"expected a pointer type, found {self.name}, which has no element type")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type (perhaps of ml_dtypes) with the same values; pointers are uint64."""
        return _NUMPY[self.signature] if self.kind != "pointer" else np.dtype(np.uint64)

    def is_floating(self) -> bool:
        """Return whether this is a floating-point type."""
        return self.kind == "float"

    def is_fp8(self) -> bool:
        """Return whether this is an 8-bit floating-point type."""
        return self.kind == "float" and self.primitive_bitwidth == 8

    def is_int(self) -> bool:
        """Return whether this is an integer type, signed or not; a bool is none."""
        return self.kind in ("int", "uint")

    def is_int_signed(self) -> bool:
        """Return whether this is a signed integer type."""
        return self.kind == "int"

    def is_int_unsigned(self) -> bool:
        """Return whether this is an unsigned integer type."""
        return self.kind == "uint"

    def is_bool(self) -> bool:
        """Return whether this is the type of truth values."""
        return self.kind == "bool"

    def is_ptr(self) -> bool:
        """Return whether this is a pointer type."""
        return self.kind == "pointer"

    @property
    def lowest(self) -> int | float:
        """The least finite value."""
        if self.kind == "float":
            return -_float_max(self)
        return -(1 << (self.primitive_bitwidth - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> int | float:
        """The greatest finite value."""
        if self.kind == "float":
            return _float_max(self)
        return (1 << (self.primitive_bitwidth - (self.kind == "int"))) - 1

    def holds(self, value: int) -> bool:
        """Return whether the integer `value` is one of this integer (or bool) type's values."""
        return self.lowest <= value <= self.highest


@cache
def _float_max(dtype: DType) -> float:
    finfo: Any = ml_dtypes.finfo  # untyped there
    return float(finfo(dtype.numpy).max)


class PointerType(DType):
    """The address of elements of one type; make one with `pointer_type`."""

    def __init__(self, element: DType) -> None:
        super().__init__(f"pointer<{element.name}>", "pointer", 64, f"*{element.signature}")
        self._element = element

    def __repr__(self) -> str:
        return f"tile.pointer_type({self._element!r})"

    @property
    def element_ty(self) -> DType:
        """What it leads to."""
        return self._element


@cache
def pointer_type(element_ty: DType) -> PointerType:
    """Return the type of pointers to `element_ty`."""
    return PointerType(element_ty)


bool_ = DType("bool", "bool", 1, "i1")
int8 = DType("int8", "int", 8, "i8")
int16 = DType("int16", "int", 16, "i16")
int32 = DType("int32", "int", 32, "i32")
int64 = DType("int64", "int", 64, "i64")
uint8 = DType("uint8", "uint", 8, "u8")
uint16 = DType("uint16", "uint", 16, "u16")
uint32 = DType("uint32", "uint", 32, "u32")
uint64 = DType("uint64", "uint", 64, "u64")
float16 = DType("float16", "float", 16, "fp16")
bfloat16 = DType("bfloat16", "float", 16, "bf16")
float32 = DType("float32", "float", 32, "fp32")
float64 = DType("float64", "float", 64, "fp64")
float8e4m3fn = DType("float8e4m3fn", "float", 8, "fp8e4m3")
float8e5m2 = DType("float8e5m2", "float", 8, "fp8e5m2")

int1 = bool_
float8e4nv = float8e4m3fn
float8e5 = float8e5m2
float8_e4m3fn = float8e4m3fn
float8_e5m2 = float8e5m2

SCALARS: tuple[DType, ...] = (
    *(bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64, float8e4m3fn, float8e5m2),
)
"""Every type but the pointers."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "i1": np.dtype(np.bool_),
    **{t.signature: np.dtype(t.name) for t in SCALARS if t.is_int()},
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
    "fp8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_BY_SIGNATURE = {t.signature: t for t in SCALARS}
_BY_NUMPY = {_NUMPY[t.signature]: t for t in SCALARS}
_BY_PYTHON: dict[object, DType] = {bool: bool_, int: int32, float: float32}


def parse_dtype(signature: str) -> DType:
    """Return the type that a signature spells: "fp32", "u8", "*bf16".

    Raises:
        KernelError: There is no such type.
    """
    if signature.startswith("*"):
        return pointer_type(parse_dtype(signature[1:]))
    if signature not in _BY_SIGNATURE:
        raise KernelError(f"expected a type among {', '.join(_BY_SIGNATURE)}, found {signature!r}")
    return _BY_SIGNATURE[signature]


def as_dtype(value: object) -> DType:
    """Return the type that an author's `dtype` argument means.

    Args:
        value: A `DType`, a `constexpr` of one, a NumPy type, or `int`, `float`, `bool`.

    Raises:
        KernelError: It means none.
    """
    inner = unwrap(value)
    if isinstance(inner, DType):
        return inner
    if inner in _BY_PYTHON:
        return _BY_PYTHON[inner]
    if isinstance(inner, np.dtype | type):
        try:
            found = _BY_NUMPY.get(np.dtype(cast("Any", inner)))
        except TypeError:
            found = None
        if found is not None:
            return found
    raise KernelError(
        f"expected a dtype, found {inner!r}", hint="dtypes are spelled `tile.float32`, `tile.int8`"
    )


# --- promotion -----------------------------------------------------------------------------------


@cache
def promote(left: DType, right: DType) -> DType | None:
    """Return the type that two operands of these types meet in, or None where there is none.

    A pointer meets only itself.
    """
    if left is right:
        return left
    if left.is_ptr() or right.is_ptr():
        return None
    if left.is_bool() or right.is_bool():
        return right if left.is_bool() else left
    if left.is_floating() and right.is_floating():
        return _promote_floats(left, right)
    if left.is_floating() or right.is_floating():
        return left if left.is_floating() else right
    return _promote_integers(left, right)


def _promote_floats(left: DType, right: DType) -> DType | None:
    if left.is_fp8() or right.is_fp8():
        return None
    if left.primitive_bitwidth == right.primitive_bitwidth:
        return float32
    return left if left.primitive_bitwidth > right.primitive_bitwidth else right


def _promote_integers(left: DType, right: DType) -> DType:
    wide, narrow = sorted((left, right), key=lambda t: t.primitive_bitwidth, reverse=True)
    if left.kind == right.kind:
        return wide
    if wide.is_int_signed() and wide.primitive_bitwidth > narrow.primitive_bitwidth:
        return wide
    unsigned = left if left.is_int_unsigned() else right
    signed = {8: int16, 16: int32, 32: int64}.get(unsigned.primitive_bitwidth)
    return float32 if signed is None else signed


def promote_weak(dtype: DType, scalar: type) -> DType | None:
    """Return the type that an operand of `dtype` and a Python scalar of type `scalar` meet in.

    Args:
        dtype: Any type.
        scalar: `bool`, `int` or `float`.
    """
    if dtype.is_ptr():
        return None
    if scalar is bool or dtype.is_floating():
        return dtype
    if scalar is int:
        return int32 if dtype.is_bool() else dtype
    return float32


def to_inexact(dtype: DType) -> DType:
    """Return the float type that true division and transcendental functions compute in."""
    if dtype.is_floating():
        return dtype
    return float64 if dtype.is_int() and dtype.primitive_bitwidth == 64 else float32


def default_dtype(value: bool | int | float) -> DType:
    """Return the type of a Python scalar alone: int32 (int64, uint64 where too large), float32.

    Raises:
        KernelError: An integer fits no type.
    """
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    found = next((t for t in (int32, int64, uint64) if t.holds(value)), None)
    if found is None:
        raise KernelError(f"expected an integer of at most 64 bits, found {value}")
    return found


# --- constexpr -----------------------------------------------------------------------------------


if TYPE_CHECKING:
    _Anything = Any  # so that a parameter marked as a constexpr may be used as what it holds
else:
    _Anything = object


class constexpr(_Anything):
    """Mark a kernel parameter as known at compile time: `BLOCK: tile.constexpr`.

    Inside the kernel such a parameter is the plain Python value. `tile.constexpr(4)` wraps a
    value, as Triton's globals do; it computes as the value in it, and `.value` takes it out.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: Any = unwrap(value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[unwrap(key)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what it holds."""
        return self.value(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "value"), name)


def unwrap(value: object) -> Any:
    """Return what a `constexpr` holds, or `value` itself."""
    return value.value if isinstance(value, constexpr) else value


def _delegate(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(operator, name)

    def method(self: constexpr, *others: object) -> Any:
        return function(self.value, *(unwrap(other) for other in others))

    method.__name__ = f"__{name.rstrip('_')}__"
    return method


def _delegate_reflected(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(operator, name)

    def method(self: constexpr, other: object) -> Any:
        return function(unwrap(other), self.value)

    method.__name__ = f"__r{name.rstrip('_')}__"
    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert", "abs"):
    setattr(constexpr, f"__{_name}__", _delegate(_name))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and_", "or_", "xor"),
):
    setattr(constexpr, f"__{_name.rstrip('_')}__", _delegate(_name))
    setattr(constexpr, f"__r{_name.rstrip('_')}__", _delegate_reflected(_name))
