"""Who uses a shared buffer, slots included."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.types import bit_width, held_by, shape_of


@dataclass
class BufferUses:
    """The values that are (slots of) a buffer, and the ops that access it, in no order."""

    values: list[ir.Value] = field(default_factory=list[ir.Value])
    users: list[ir.OpView] = field(default_factory=list[ir.OpView])


def buffer_uses(buffer: ir.Value) -> BufferUses:
    """Follow a buffer through its slots."""
    found = BufferUses()
    stack = [buffer]
    while stack:
        value = stack.pop()
        found.values.append(value)
        for use in value.uses:
            user = use.owner
            if isinstance(user, tgpu.SlotOp):
                stack.append(user.slot)
            else:
                found.users.append(user)
    return found


def whole_buffer(value: ir.Value) -> ir.Value:
    """Return the whole buffer behind a slot."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and isinstance(owner.opview, tgpu.SlotOp):
        value = owner.opview.buffer
        owner = value.owner
    return value


def reads_shared(op: tgpu.WarpgroupMmaOp, operand: int) -> bool:
    """Whether a product of warpgroups reads one of its operands in shared memory."""
    return operand == 1 or (operand == 0 and op.a_shared)


def k_axis(op: tgpu.WarpgroupMmaOp, operand: int) -> int:
    """Return which axis of an operand, as it is stored, is k."""
    if operand == 0:
        return 0 if op.a_transposed else 1
    return 1 if op.b_transposed else 0


def buffer_bytes(type_: ir.Type) -> int:
    """Give the bytes of a shared buffer, all slots."""
    held = held_by(type_)
    size = max(1, bit_width(held) // 8)
    for extent in shape_of(held):
        size *= extent
    return size
