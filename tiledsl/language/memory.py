"""Reading and writing global memory through pointers: `load` and `store`.

Pointers, masks and values broadcast together, as NumPy's arrays do; the result has their common
shape. Bools are bytes in memory.
"""

from __future__ import annotations

from math import prod

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, unwrap
from tiledsl.language import casts
from tiledsl.language.operands import as_value, broadcast_shapes, broadcast_to, is_number
from tiledsl.language.types import Shape
from tiledsl.language.value import Operand, Value, build, build_all, constant, describe

LOAD_CACHE = ("", ".ca", ".cg", ".cs", ".cv")
STORE_CACHE = ("", ".wb", ".cg", ".cs", ".wt")
EVICTION = ("", "evict_first", "evict_last", "evict_normal")


def load(
    pointer: Operand,
    mask: Operand | None = None,
    other: Operand | None = None,
    boundary_check: object = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Value:
    """Read through a pointer, or a tile of pointers.

    Args:
        pointer: A scalar pointer gives a scalar, a tile of pointers a tile of their shape.
        mask: Bools; where it is false nothing is read.
        other: What is given where the mask is false, converted to the element type; 0 if absent.
        boundary_check: Of Triton's block pointers, which are not supported: must be empty.
        padding_option: As `boundary_check`.
        cache_modifier: "", ".ca", ".cg", ".cs" or ".cv": PTX cache operators; a hint.
        eviction_policy: "", "evict_first", "evict_last" or "evict_normal"; a hint.
        volatile: Whether every execution reads memory anew.

    Raises:
        KernelError: An argument is of another kind, or the shapes do not broadcast.
    """
    base = pointers(pointer, "load")
    _no_block_pointers(boundary_check, padding_option)
    given = optional_mask(mask)
    filled = None
    if unwrap(other) is not None:
        if unwrap(mask) is None:
            raise KernelError(
                "expected `mask` where `other` is given: without a mask every element is read",
                hint="load(pointer, mask=..., other=...)",
            )
        filled = converted(other, base.dtype.element_ty)
    if given is None:
        filled = None
    values = [v for v in (base, given, filled) if v is not None]
    shape = common_shape(values, "load")
    placed = [None if v is None else broadcast_to(v, shape) for v in (base, given, filled)]
    return build(
        tile.LoadOp,
        *placed,
        dtype=base.dtype.element_ty,
        shape=shape,
        cache=_choice(cache_modifier, LOAD_CACHE, "cache_modifier").removeprefix(".") or None,
        eviction=_choice(eviction_policy, EVICTION, "eviction_policy") or None,
        volatile=True if unwrap(volatile) else None,
    )


def store(
    pointer: Operand,
    value: Operand,
    mask: Operand | None = None,
    boundary_check: object = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Write through a pointer, or a tile of pointers.

    Args:
        pointer: Where to write.
        value: What, converted to the element type; it broadcasts to the pointers.
        mask: Bools; where it is false nothing is written.
        boundary_check: Of Triton's block pointers, which are not supported: must be empty.
        cache_modifier: "", ".wb", ".cg", ".cs" or ".wt": PTX cache operators; a hint.
        eviction_policy: "", "evict_first", "evict_last" or "evict_normal"; a hint.

    Raises:
        KernelError: An argument is of another kind, or there are fewer pointers than elements.
    """
    base = pointers(pointer, "store")
    _no_block_pointers(boundary_check, "")
    stored = converted(value, base.dtype.element_ty)
    given = optional_mask(mask)
    shape = one_address_each(base, [v for v in (stored, given) if v is not None], "store")
    build_all(
        tile.StoreOp,
        broadcast_to(base, shape),
        broadcast_to(stored, shape),
        None if given is None else broadcast_to(given, shape),
        types=[],
        cache=_choice(cache_modifier, STORE_CACHE, "cache_modifier").removeprefix(".") or None,
        eviction=_choice(eviction_policy, EVICTION, "eviction_policy") or None,
    )


# --- what the arguments of memory operations must be; atomics use these too ----------------------


def pointers(pointer: Operand, what: str) -> Value:
    """Return the first argument of a memory operation: a pointer or a tile of them."""
    base = unwrap(pointer)
    if not isinstance(base, Value) or not base.dtype.is_ptr():
        from tiledsl.language.descriptor import TensorDescriptor  # it needs this module

        hint = None
        if isinstance(base, Value) and base.dtype.is_int():
            hint = "an address as an integer converts by x.to(tile.pointer_type(tile.float32))"
        elif isinstance(base, TensorDescriptor) and hasattr(base, what):
            hint = f"a descriptor's own: x.{what}([i, ...])"
        raise KernelError(
            f"expected a pointer or a tile of pointers as the first argument of `{what}`, "
            f"found {describe(base)}",
            hint=hint,
        )
    return base


def optional_mask(mask: Operand | None) -> Value | None:
    """Return a mask as a bool value; None for one that is absent or plainly true."""
    given = unwrap(mask)
    if given is None or given is True:
        return None
    found = as_value(given)
    if not found.dtype.is_bool():
        raise KernelError(
            f"expected `mask` to be bools, found {describe(given)}",
            hint="a comparison gives bools, as mask=offsets < n",
        )
    return found


def converted(value: Operand, dtype: DType) -> Value:
    """Return a value to be written as the element type of what it is written to."""
    plain = unwrap(value)
    if is_number(plain):
        return constant(casts.cast_number(plain, dtype), dtype)
    return casts.to(as_value(plain), dtype)


def common_shape(values: list[Value], what: str) -> Shape:
    """Return the shape that the arguments of a memory operation broadcast to."""
    shape = broadcast_shapes(*(v.shape for v in values))
    if shape is None:
        found = " and ".join(str(v.shape) for v in values)
        raise KernelError(
            f"expected arguments of `{what}` whose shapes broadcast together, found {found}"
        )
    return shape


def one_address_each(base: Value, others: list[Value], what: str) -> Shape:
    """Return the common shape, which must not have more elements than there are pointers."""
    shape = common_shape([base, *others], what)
    if prod(shape) != base.numel:
        widest = max(others, key=lambda v: v.numel)
        raise KernelError(
            f"expected one pointer for each element of `{what}`, found pointers of shape "
            f"{base.shape} and {describe(widest)}",
            hint="add a tile of offsets to the pointer" if not base.shape else None,
        )
    return shape


def _no_block_pointers(boundary_check: object, padding_option: object) -> None:
    if unwrap(boundary_check) or unwrap(padding_option):
        raise KernelError(
            "expected no `boundary_check` or `padding_option`: block pointers are not supported",
            hint="mask the ragged edge: mask=offsets < size",
        )


def _choice(value: object, choices: tuple[str, ...], name: str) -> str:
    found = unwrap(value)
    if found is None:
        return ""
    if not isinstance(found, str) or found not in choices:
        listed = ", ".join(f'"{c}"' for c in choices)
        raise KernelError(f"expected `{name}` to be one of {listed}, found {describe(found)}")
    return found
