"""Give the kernel an argument for each tensor that boxes are copied of or to.

The unit that copies boxes takes a description of the tensor from memory, which the launcher makes
of the arguments' values: `map_spec.MapSpec` says how. Descriptions that are alike are one argument;
they follow the author's arguments.

Before: the `tgpu` level, after `swizzle_shared`, which decides the boxes' permutation.
After: the same; every `tgpu.box_copy` and `tgpu.box_store` names its argument, and the kernel's
`tgpu.tensor_maps` holds the `MapSpec`s as text, in the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_ALIGNED = 16
"""Bytes that a tensor's address and strides are multiples of."""
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


def strides_of(module: ir.Module) -> dict[str, int]:
    """Return the arguments of kernels that are strides of tensors read or written in boxes.

    Or, where they are written, the size of the last dimension. Each is mapped to what it has to be
    a multiple of for copies of boxes: 16 bytes in elements.
    """
    found: dict[str, int] = {}
    for kernel in kernels(module):
        for name, needed in _strides_of(kernel):
            found[name] = min(needed, found.get(name, needed))
    return found


def _strides_of(kernel: ir.OpView) -> Iterator[tuple[str, int]]:
    given: Any = kernel.operation.attributes["arg_attrs"]
    for op in operations(kernel.operation):
        if not isinstance(op, tile.DescriptorLoadOp | tile.DescriptorStoreOp):
            continue
        held = op.output if isinstance(op, tile.DescriptorLoadOp) else op.tile
        needed = max(1, _ALIGNED // (storage_bits(held.type) // 8))
        numbers = op.box.strides[:-1]
        if isinstance(op, tile.DescriptorStoreOp):
            numbers += op.box.sizes[-1:]
        for kind, position in filter(None, map(number_of, numbers)):
            if kind == "argument":
                yield ir.StringAttr(given[position]["tile.name"]).value, needed


def can_map(box: tile.Box, divisors: Sequence[int], element_bytes: int) -> bool:
    """Whether the launcher can describe a tensor, and copies can start anywhere in it.

    Args:
        box: Any box of the tensor, of two dimensions or more.
        divisors: What each of the kernel's arguments is known to be a multiple of, in bytes for
            pointers.
        element_bytes: Bytes of an element.
    """
    if not 2 <= len(box.sizes) <= _MOST_DIMENSIONS:
        return False
    base = number_of(box.base)
    sizes = [number_of(one) for one in box.sizes]
    *outer, inner = (number_of(one) for one in box.strides)
    if base is None or base[0] != "argument" or divisors[base[1]] % _ALIGNED or None in sizes:
        return False

    def fits(stride: Number | None) -> bool:
        if stride is None:
            return False
        multiple = divisors[stride[1]] if stride[0] == "argument" else stride[1]
        return multiple > 0 and multiple * element_bytes % _ALIGNED == 0

    return inner == ("constant", 1) and all(map(fits, outer))


def place_tensor_maps(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for kernel in kernels(module):
        specs: dict[MapSpec, int] = {}
        block = body(kernel)
        given = len(block.arguments)
        for op in list(operations(kernel.operation)):
            if isinstance(op, tgpu.BoxCopyOp | tgpu.BoxStoreOp):
                spec = _spec(op, layouts)
                number = specs.setdefault(spec, given + len(specs))
                op.operation.attributes["map"] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(64), number
                )
        if specs:
            _add_arguments(kernel, block, list(specs))


def operand_in(buffer: ir.Value, layouts: Layouts) -> SharedOperand:
    """Return how a buffer holds the boxes that are copied to or from it."""
    held = held_by(buffer.type)
    found = operand_of(layouts.of(held), storage_bits(held) // 8, 1)
    if found is None or found.fastest != 1:
        raise CompilerBug(f"expected a buffer that boxes can be copied to, found {buffer.type}")
    return found


def _spec(op: tgpu.BoxCopyOp | tgpu.BoxStoreOp, layouts: Layouts) -> MapSpec:
    box, held = op.box, held_by(op.buffer.type)
    operand = operand_in(op.buffer, layouts)
    element, rows, writes = str(element_of(held)), operand.shape[0], False
    if isinstance(op, tgpu.BoxStoreOp):
        rows, writes = op.copied[0], True
    else:
        rows //= op.blocks
        element = op.rounds or element
    rank = len(box.sizes)
    strides = list(reversed(box.strides))[1:]
    numbers = [number_of(one) for one in (*reversed(box.sizes), *strides, box.base)]
    if None in numbers or rows > _MOST_BOX:
        raise CompilerBug(f"expected a tensor that the launcher can describe, found {op}")
    *known, base = cast("list[Number]", numbers)
    return MapSpec(
        element,
        base[1],
        tuple(known[:rank]),
        tuple(known[rank:]),
        (operand.swizzle_bytes // operand.element_bytes, rows, *(1,) * (rank - 2)),
        operand.swizzle_bytes,
        writes,
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
