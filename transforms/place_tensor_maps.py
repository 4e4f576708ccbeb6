"""Give the kernel an argument for each tensor that boxes are copied of or to.

The unit that copies boxes takes a description of the tensor from memory, which the launcher makes
of the arguments' values: `map_spec.MapSpec` says how. Descriptions that are alike are one argument;
they follow the author's arguments.

Before: the `tgpu` level, after `swizzle_shared`, which decides the boxes' permutation.
After: the same; every `tgpu.box_copy` names its argument, and the kernel's `tgpu.tensor_maps` holds
the `MapSpec`s as text, in the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import element_of, held_by, storage_bits
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.map_spec import MapSpec, Number
from tiledsl.transforms.warpgroup_operand import SharedOperand, operand_of

MAPS = "tgpu.tensor_maps"
_MOST_BOX = 256
"""Elements along a side of what one copy moves."""
_MOST_DIMENSIONS = 5


def number_of(value: ir.Value) -> Number | None:
    """Return a number that the launcher knows: a constant or an argument; None for another."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        if owner.owner.operation.name != "func.func":
            return None
        return "argument", ir.BlockArgument(value).arg_number
    if owner.operation.name == "arith.extsi":
        return number_of(owner.operation.operands[0])
    if owner.operation.name == "arith.constant":
        return "constant", ir.IntegerAttr(owner.operation.attributes["value"]).value
    return None


def can_map(box: tile.Box, divisible: Sequence[bool], element_bytes: int) -> bool:
    """Whether the launcher can describe a tensor, and copies can start anywhere in it.

    Args:
        box: Any box of the tensor, of two dimensions or more.
        divisible: Which of the kernel's arguments are known to be divisible by 16 (bytes for
            pointers).
        element_bytes: Bytes of an element.
    """
    if not 2 <= len(box.sizes) <= _MOST_DIMENSIONS:
        return False
    base = number_of(box.base)
    sizes = [number_of(one) for one in box.sizes]
    *outer, inner = (number_of(one) for one in box.strides)
    if base is None or base[0] != "argument" or not divisible[base[1]] or None in sizes:
        return False

    def fits(stride: Number | None) -> bool:
        if stride is None or stride[0] == "argument":
            return stride is not None and divisible[stride[1]]
        return stride[1] * element_bytes % 16 == 0 and stride[1] > 0

    return inner == ("constant", 1) and all(map(fits, outer))


def place_tensor_maps(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for kernel in kernels(module):
        specs: dict[MapSpec, int] = {}
        block = body(kernel)
        given = len(block.arguments)
        for op in list(operations(kernel.operation)):
            if isinstance(op, tgpu.BoxCopyOp):
                spec = _spec(op, layouts)
                number = specs.setdefault(spec, given + len(specs))
                op.operation.attributes["map"] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(64), number
                )
        if specs:
            _add_arguments(kernel, block, list(specs))


def operand_in(buffer: ir.Value, layouts: Layouts) -> SharedOperand:
    """Return how a buffer holds the boxes that are copied to it."""
    held = held_by(buffer.type)
    found = operand_of(layouts.of(held), storage_bits(held) // 8, 1)
    if found is None or found.fastest != 1:
        raise CompilerBug(f"expected a buffer that boxes can be copied to, found {buffer.type}")
    return found


def _spec(op: tgpu.BoxCopyOp, layouts: Layouts) -> MapSpec:
    box, held = op.box, held_by(op.buffer.type)
    operand = operand_in(op.buffer, layouts)
    rows = operand.shape[0]
    rank = len(box.sizes)
    strides = list(reversed(box.strides))[1:]
    numbers = [number_of(one) for one in (*reversed(box.sizes), *strides, box.base)]
    if None in numbers or rows > _MOST_BOX:
        raise CompilerBug(f"expected a tensor that the launcher can describe, found {op}")
    *known, base = cast("list[Number]", numbers)
    return MapSpec(
        str(element_of(held)),
        base[1],
        tuple(known[:rank]),
        tuple(known[rank:]),
        (operand.swizzle_bytes // operand.element_bytes, rows, *(1,) * (rank - 2)),
        operand.swizzle_bytes,
    )


def _add_arguments(kernel: ir.OpView, block: ir.Block, specs: Sequence[MapSpec]) -> None:
    """Add the arguments to the kernel's function, and say what they are."""
    context = kernel.operation.context
    map_type = ir.Type.parse("!tgpu.tensor_map", context)
    for _ in specs:
        block.add_argument(map_type, kernel.operation.location)
    attributes: Any = kernel.operation.attributes
    types = [argument.type for argument in block.arguments]
    attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, [], context))
    if "arg_attrs" in attributes:
        made: Any = ir.ArrayAttr
        empty: Any = ir.DictAttr
        more = [empty.get({}, context) for _ in specs]
        attributes["arg_attrs"] = made.get([*attributes["arg_attrs"], *more], context)
    attributes[MAPS] = ir.StringAttr.get(MapSpec.write(specs), context)
