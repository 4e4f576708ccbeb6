"""Atomic operations on global memory. Each gives the value that was there before.

Each addressed element is changed exactly once a program, however many threads hold a copy of it;
the old value is the same in all of them. What is written converts to the element type first.
`sem` is the memory order ("acquire", "release", "acq_rel", "relaxed"; "acq_rel" by default),
`scope` who sees it ("cta": this program, "gpu": the device, "sys": the host too; "gpu" by default).

    add          int32, int64, uint32, uint64, float16, bfloat16, float32, float64
    max, min     int32, int64, uint32, uint64, float32, float64; NaN propagates
    and, or, xor int32, int64, uint32, uint64
    xchg, cas    any type of 32 or 64 bits
"""

from __future__ import annotations

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.tile import SCOPE, SEMANTICS
from tiledsl.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
    unwrap,
)
from tiledsl.language.memory import converted, one_address_each, optional_mask, pointers
from tiledsl.language.operands import broadcast_to
from tiledsl.language.value import Operand, Value, build, describe

_INTEGERS = (int32, int64, uint32, uint64)
_WORDS = (*_INTEGERS, float32, float64)
ADDED = (*_INTEGERS, float16, bfloat16, float32, float64)


def atomic_add(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Add to each addressed element; returns what was there before.

    Args:
        pointer: A pointer or a tile of pointers, to 32- or 64-bit integers or to floats.
        val: What to add; it broadcasts to the pointers.
        mask: Bools; where it is false nothing happens and the result is 0.
        sem: Memory order.
        scope: Who sees the order.
    """
    base = _checked(pointer, ADDED, "atomic_add")
    kind = "fadd" if base.dtype.element_ty.is_floating() else "add"
    return _rmw(base, val, mask, sem, scope, kind, "atomic_add")


def atomic_max(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write the larger of the element and `val`, NaN where either is NaN; see `atomic_add`."""
    base = _checked(pointer, _WORDS, "atomic_max")
    return _rmw(base, val, mask, sem, scope, _extremum(base, "max"), "atomic_max")


def atomic_min(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write the smaller of the element and `val`, NaN where either is NaN; see `atomic_add`."""
    base = _checked(pointer, _WORDS, "atomic_min")
    return _rmw(base, val, mask, sem, scope, _extremum(base, "min"), "atomic_min")


def _extremum(base: Value, name: str) -> str:
    dtype = base.dtype.element_ty
    prefix = "f" if dtype.is_floating() else "u" if dtype.is_int_unsigned() else ""
    return prefix + name


def atomic_and(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write the bitwise and of the element and `val`; see `atomic_add`."""
    base = _checked(pointer, _INTEGERS, "atomic_and")
    return _rmw(base, val, mask, sem, scope, "and", "atomic_and")


def atomic_or(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write the bitwise or of the element and `val`; see `atomic_add`."""
    base = _checked(pointer, _INTEGERS, "atomic_or")
    return _rmw(base, val, mask, sem, scope, "or", "atomic_or")


def atomic_xor(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write the bitwise exclusive or of the element and `val`; see `atomic_add`."""
    base = _checked(pointer, _INTEGERS, "atomic_xor")
    return _rmw(base, val, mask, sem, scope, "xor", "atomic_xor")


def atomic_xchg(
    pointer: Operand,
    val: Operand,
    mask: Operand | None = None,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write `val` in each addressed element; see `atomic_add`."""
    base = _checked(pointer, _WORDS, "atomic_xchg")
    return _rmw(base, val, mask, sem, scope, "xchg", "atomic_xchg")


def atomic_cas(
    pointer: Operand,
    cmp: Operand,
    val: Operand,
    sem: str | None = None,
    scope: str | None = None,
) -> Value:
    """Write `val` where the element's bits are those of `cmp`; see `atomic_add`."""
    base = _checked(pointer, _WORDS, "atomic_cas")
    element = base.dtype.element_ty
    expected, value = converted(cmp, element), converted(val, element)
    shape = one_address_each(base, [expected, value], "atomic_cas")
    return build(
        tile.AtomicCasOp,
        *(broadcast_to(v, shape) for v in (base, expected, value)),
        dtype=element,
        shape=shape,
        sem=_choice(sem, SEMANTICS, "sem"),
        scope=_choice(scope, SCOPE, "scope"),
    )


def _checked(pointer: Operand, dtypes: tuple[DType, ...], what: str) -> Value:
    base = pointers(pointer, what)
    if base.dtype.element_ty not in dtypes:
        raise KernelError(
            f"expected `{what}` on {', '.join(d.name for d in dtypes)}, "
            f"found a pointer to {base.dtype.element_ty}"
        )
    return base


def _rmw(
    base: Value,
    val: Operand,
    mask: Operand | None,
    sem: object,
    scope: object,
    kind: str,
    what: str,
) -> Value:
    element = base.dtype.element_ty
    value, given = converted(val, element), optional_mask(mask)
    shape = one_address_each(base, [v for v in (value, given) if v is not None], what)
    return build(
        tile.AtomicRmwOp,
        broadcast_to(base, shape),
        broadcast_to(value, shape),
        None if given is None else broadcast_to(given, shape),
        dtype=element,
        shape=shape,
        kind=kind,
        sem=_choice(sem, SEMANTICS, "sem"),
        scope=_choice(scope, SCOPE, "scope"),
    )


def _choice(value: object, choices: tuple[str, ...], name: str) -> str | None:
    found = unwrap(value)
    if found is None or (isinstance(found, str) and found in choices):
        return found
    listed = ", ".join(f'"{c}"' for c in choices)
    raise KernelError(f"expected `{name}` to be one of {listed}, found {describe(found)}")
