"""Read and make the types of the `tile` and `tgpu` dialects.

A *tile* is a ranked tensor of static shape; its encoding is None at the `tile` level and the symbol
of a layout at the `tgpu` level. A *pointer* is `!tile.ptr<element>`. A *shared buffer* is
`!tgpu.shared<tensor<...>>`, the tensor saying what it holds and, by its encoding, how.

Dynamic types give Python no access to their parameters, so the parameter is read from the text,
once a type: the context lives as long as the process, so the caches stay valid.
"""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

from mlir import ir

_PTR, _SHARED = "!tile.ptr<", "!tgpu.shared<"


def is_tile(type_: ir.Type) -> TypeGuard[ir.RankedTensorType]:
    """Return whether `type_` is a tile."""
    return isinstance(type_, ir.RankedTensorType)


def shape_of(type_: ir.Type) -> tuple[int, ...]:
    """Return the shape of a tile; a scalar's is ()."""
    return tuple(type_.shape) if is_tile(type_) else ()


def element_of(type_: ir.Type) -> ir.Type:
    """Return the element type of a tile; a scalar's is itself."""
    return type_.element_type if is_tile(type_) else type_


def layout_name(type_: ir.Type) -> str | None:
    """Return the name of the layout that a tile's encoding refers to, if it has one."""
    if not is_tile(type_) or type_.encoding is None:
        return None
    return ir.FlatSymbolRefAttr(type_.encoding).value


@cache
def tile_type(shape: tuple[int, ...], element: ir.Type, layout: str | None = None) -> ir.Type:
    """Return the tile of `shape`, or `element` itself where the shape is ()."""
    if not shape:
        return element
    encoding = None if layout is None else ir.FlatSymbolRefAttr.get(layout, element.context)
    return ir.RankedTensorType.get(
        list(shape), element, encoding, ir.Location.unknown(element.context)
    )


def like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """Return `type_` with another element type: same shape, same layout; scalars give `element`."""
    return tile_type(shape_of(type_), element, layout_name(type_)) if is_tile(type_) else element


def with_layout(type_: ir.Type, layout: str | None) -> ir.Type:
    """Return the tile type with another layout, or none."""
    return tile_type(shape_of(type_), element_of(type_), layout)


@cache
def _parameter(type_: ir.Type, prefix: str) -> ir.Type | None:
    text = str(type_)
    if not text.startswith(prefix):
        return None
    return ir.Type.parse(text[len(prefix) : -1], type_.context)


@cache
def pointer_to(element: ir.Type) -> ir.Type:
    """Return `!tile.ptr<element>`."""
    return ir.Type.parse(f"{_PTR}{element}>", element.context)


def pointee(type_: ir.Type) -> ir.Type:
    """Return the element type that a pointer or tile of pointers leads to.

    Raises:
        TypeError: `type_` is neither.
    """
    found = _parameter(element_of(type_), _PTR)
    if found is None:
        raise TypeError(f"expected a pointer or a tile of pointers, found {type_}")
    return found


def is_pointer(type_: ir.Type) -> bool:
    """Return whether `type_` is a pointer or a tile of pointers."""
    return _parameter(element_of(type_), _PTR) is not None


@cache
def shared_type(held: ir.Type) -> ir.Type:
    """Return `!tgpu.shared<held>`, the type of a shared-memory buffer holding the tile `held`."""
    return ir.Type.parse(f"{_SHARED}{held}>", held.context)


def held_by(type_: ir.Type) -> ir.RankedTensorType:
    """Return the tile type that a shared buffer's type holds.

    Raises:
        TypeError: `type_` is no shared buffer.
    """
    found = _parameter(type_, _SHARED)
    if found is None or not is_tile(found):
        raise TypeError(f"expected a shared buffer, found {type_}")
    return found


def is_tensor_map(type_: ir.Type) -> bool:
    """Whether `type_` is a description of a tensor that the launcher makes."""
    return str(type_) == "!tgpu.tensor_map"


def is_shared(type_: ir.Type) -> bool:
    """Return whether `type_` is a shared buffer."""
    return _parameter(type_, _SHARED) is not None


@cache
def is_float(type_: ir.Type) -> bool:
    """Return whether the scalar `type_`, or a tile's element, is a floating-point type."""
    return isinstance(element_of(type_), ir.FloatType)


@cache
def bit_width(type_: ir.Type) -> int:
    """Return the bits of the scalar `type_` or of a tile's element; a pointer has 64, a bool 1."""
    element = element_of(type_)
    if is_pointer(element):
        return 64
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return element.width
    raise TypeError(f"expected a scalar type, found {type_}")


def storage_bits(type_: ir.Type) -> int:
    """Return the bits that an element takes in memory: a bool takes a byte."""
    return max(8, bit_width(type_))
