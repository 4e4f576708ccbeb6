"""The types of the host's `machine` level.

A pointer is held as an i64 address, and a float of 16 or 8 bits as those bits: nothing but a
conversion computes on one, and LLVM calls library functions for more of them than one would think.
All else is as it was. In memory a bool is a byte.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.types import element_of, is_pointer


@cache
def integer(bits: int) -> ir.Type:
    """Return the signless integer type of so many bits."""
    return ir.IntegerType.get_signless(bits, context())


@cache
def pointer_type() -> ir.Type:
    """Return LLVM's pointer type."""
    return ir.Type.parse("!llvm.ptr", context())


@cache
def value_type(type_: ir.Type) -> ir.Type:
    """Return the type that holds an element of a scalar or tile of `type_`."""
    element = element_of(type_)
    if is_pointer(element):
        return integer(64)
    if isinstance(element, ir.FloatType) and element.width <= 16:
        return integer(element.width)
    return element


@cache
def stored_type(type_: ir.Type) -> ir.Type:
    """Return the type of an element in memory."""
    held = value_type(type_)
    return integer(8) if held == integer(1) else held


@cache
def width_of(type_: ir.Type) -> int:
    """Return the bits of a scalar machine type."""
    assert isinstance(type_, ir.IntegerType | ir.FloatType)
    return type_.width


def size_of(type_: ir.Type) -> int:
    """Return the bytes of a scalar machine type in memory."""
    return max(1, width_of(type_) // 8)


@cache
def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    """Return the vector of so many elements; one is a scalar."""
    if lanes == 1:
        return element
    vectors: Any = ir.VectorType
    return vectors.get([lanes], element, loc=ir.Location.unknown(context()))


def element_of_vector(type_: ir.Type) -> ir.Type:
    """Return a vector's element type; a scalar's is itself."""
    return ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_


def lanes_of(type_: ir.Type) -> int:
    """Return the number of elements of a vector; 1 for a scalar."""
    return ir.VectorType(type_).shape[0] if isinstance(type_, ir.VectorType) else 1


def wrap(value: int, bits: int) -> int:
    """Return `value` modulo 2**bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
