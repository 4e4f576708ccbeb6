"""From the types of the `tgpu` level to those of one thread.

A tile becomes a vector of the thread's registers, in the order of its layout's register index. fp8
is i8 in registers, because no chip computes with it; a bool is i1 in registers and i8 in memory; a
pointer is `!llvm.ptr<1>`, a shared buffer `!llvm.ptr<3>` to its start.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import element_of, is_pointer, is_shared, is_tensor_map, is_tile
from tiledsl.targets.gpu.emit import integer, pointer_type, vector_of


def is_fp8(element: ir.Type) -> bool:
    """Return whether it is an 8-bit float."""
    return isinstance(element, ir.FloatType) and element.width == 8


def in_register(element: ir.Type) -> ir.Type:
    """Return the type in registers of a scalar type of the `tgpu` level."""
    if is_fp8(element):
        return integer(8)
    if is_pointer(element):
        return pointer_type(1)
    if is_shared(element):
        return pointer_type(3)
    if is_tensor_map(element):
        return pointer_type(0)
    return element


def in_memory(element: ir.Type) -> ir.Type:
    """Return the type in memory of a scalar type of the `tgpu` level."""
    held = in_register(element)
    return integer(8) if held == integer(1) else held


class Types:
    """The types of one module, whose layouts it knows."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._known: dict[ir.Type, ir.Type] = {}

    def layout(self, type_: ir.Type) -> LinearLayout:
        """Return the layout of a tile type, or of the tile that a buffer's type holds."""
        return self._layouts.of(type_)

    def of(self, type_: ir.Type) -> ir.Type:
        """Return the type of one thread's part."""
        found = self._known.get(type_)
        if found is None:
            element = in_register(element_of(type_))
            found = vector_of(self.layout(type_).registers, element) if is_tile(type_) else element
            self._known[type_] = found
        return found

    def registers(self, type_: ir.Type) -> int:
        """Return how many elements one thread holds of a tile."""
        return self.layout(type_).registers
