"""Layouts by name: from the symbol in an encoding to the `LinearLayout`, and back.

`Layouts` reads the `tgpu.layout` ops of a module once and adds new ones as passes need them; equal
layouts share one name. It is the only writer of `tgpu.layout` ops.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.tgpu import LayoutOp
from tiledsl.dialects.types import layout_name, with_layout


class Layouts:
    """The layouts that a module defines."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._by_name: dict[str, LinearLayout] = {}
        self._names: dict[LinearLayout, str] = {}
        for op in module.body.operations:
            if isinstance(op, LayoutOp):
                self._remember(op.sym_name, LinearLayout.parse(op.map))

    def _remember(self, name: str, layout: LinearLayout) -> None:
        self._by_name[name] = layout
        self._names.setdefault(layout, name)

    def __getitem__(self, name: str) -> LinearLayout:
        return self._by_name[name]

    def of(self, type_: ir.Type) -> LinearLayout:
        """Return the layout of a tile type (or of the tile type that a shared buffer holds).

        Raises:
            KeyError: The type has no encoding, or no layout has its name.
        """
        name = layout_name(type_)
        if name is None:
            raise KeyError(f"expected a type with a layout, found {type_}")
        return self._by_name[name]

    def name(self, layout: LinearLayout, stem: str = "layout") -> str:
        """Return the name of `layout`, defining it at the top of the module if it has none.

        A new name is `stem` and a number that is free.
        """
        if layout in self._names:
            return self._names[layout]
        number = sum(1 for name in self._by_name if name.rstrip("0123456789") == stem)
        while (name := f"{stem}{number}") in self._by_name:
            number += 1
        self._remember(name, layout)
        context = self._module.context
        with context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(self._module.body):
            LayoutOp.build(sym_name=name, map=str(layout))
        return name

    def apply(self, type_: ir.Type, layout: LinearLayout, stem: str = "layout") -> ir.Type:
        """Return the tile type `type_` under `layout`."""
        return with_layout(type_, self.name(layout, stem))
