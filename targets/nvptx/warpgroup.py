"""Products of warpgroups: `wgmma` on operands that shared memory holds.

Each warpgroup issues one run of instructions along k for each piece (m64 x n) of its part of the
accumulator; a run is one op, so that nothing comes between its steps. Where a piece begins in
shared memory is the buffer's start, plus constants, plus what the warpgroup's number adds, which is
read from lane 0: uniform values keep descriptors in uniform registers.

Source: PTX ISA 8.7, "Asynchronous warpgroup-level matrix instructions"; the descriptor's fields as
in its "Matrix Descriptor Format".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, llvm

from tiledsl.dialects import ptx, tgpu
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.dialects.types import element_of, held_by, is_pointer, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer
from tiledsl.targets.gpu.lowering import Handler, Lowering
from tiledsl.targets.gpu.shared import buffer_layout
from tiledsl.targets.nvptx.mma import Wgmma
from tiledsl.transforms.fold import is_zero
from tiledsl.transforms.warpgroup_operand import SharedOperand, operand_of

WARPGROUP = 4
"""Warps."""
_SWIZZLE_MODE = {128: 1, 64: 2, 32: 3}
_ADDRESS_MASK = 0x3FFFF


@dataclass(frozen=True)
class _Piece:
    """One m64 x n piece of a warpgroup's accumulator.

    Attributes:
        number: Its place among the thread's pieces.
        row: First row, for warpgroup 0.
        column: First column, for warpgroup 0.
    """

    number: int
    row: int
    column: int


def _pieces(layout: LinearLayout, size: int) -> list[_Piece]:
    """Return the pieces in the order of the thread's registers."""
    bases = layout.bases["register"][log2_exact(size) :]
    found: list[_Piece] = []
    for number in range(layout.registers // size):
        chosen = [basis for bit, basis in enumerate(bases) if number >> bit & 1]
        found.append(_Piece(number, sum(b[0] for b in chosen), sum(b[1] for b in chosen)))
    return found


def _warpgroup_offset(lowering: Lowering, added: Sequence[int]) -> ir.Value | None:
    """Return the bytes that this warpgroup's number adds; None if none does.

    Args:
        lowering: The kernel.
        added: Bytes by bit of the warpgroup's number.
    """
    total: ir.Value | None = None
    for bit, size in enumerate(added):
        if not size:
            continue
        group = lowering.once("warpgroup", lambda: warpgroup_of(lowering))
        one = arith.andi(arith.shrui(group, i32(bit)), i32(1))
        term = arith.muli(one, i32(size))
        total = term if total is None else arith.addi(total, term)
    return total


def warpgroup_of(lowering: Lowering) -> ir.Value:
    """Build this thread's warpgroup's number, the same in all lanes as ptxas can see."""
    threads = WARPGROUP * lowering.machine.warp_size
    own = arith.shrui(lowering.place.thread, i32(log2_exact(threads)))
    return lowering.machine.shuffle_index(own, i32(0))


class _Descriptors:
    """The descriptors of one operand in shared memory."""

    def __init__(
        self, lowering: Lowering, buffer: ir.Value, k_axis: int, added: Sequence[int]
    ) -> None:
        """Read the operand off its buffer.

        Args:
            lowering: The kernel.
            buffer: The buffer, at the `tgpu` level.
            k_axis: Which of its axes is k.
            added: What each bit of the warpgroup's number adds to the index along m or n.
        """
        bits = storage_bits(held_by(buffer.type))
        found = operand_of(buffer_layout(lowering, buffer), bits // 8, k_axis)
        if found is None:
            raise CompilerBug(f"expected an operand that wgmma can read, found {buffer.type}")
        self.operand: SharedOperand = found
        start = llvm.ptrtoint(integer(32), lowering.value(buffer))
        moved = _warpgroup_offset(lowering, [found.offset(one, 0) for one in added])
        self._start = start if moved is None else arith.addi(start, moved)

    def at(self, across: int) -> ir.Value:
        """Build the descriptor of the piece that begins at `across` along m or n."""
        operand = self.operand
        address = arith.addi(self._start, i32(operand.offset(across, 0)))
        field = arith.shrui(arith.andi(address, i32(_ADDRESS_MASK)), i32(4))
        high = (
            operand.leading_bytes >> 4 << 16
            | operand.stride_bytes >> 4 << 32
            | _SWIZZLE_MODE[operand.swizzle_bytes] << 62
        )
        return arith.ori(arith.extui(integer(64), field), emit.constant(integer(64), high))

    def steps(self, across: int, depth: int, count: int) -> list[int]:
        """Return what each step along k adds to the descriptor of a piece."""
        first = self.operand.offset(across, 0)
        return [self.operand.offset(across, depth * i) - first >> 4 for i in range(count)]


def _warpgroup_mma(lowering: Lowering, op: tgpu.WarpgroupMmaOp) -> None:
    entry: Any = lowering.machine.table.entry(op.instruction)
    assert isinstance(entry, Wgmma)
    layout = lowering.layout(op.acc)
    groups = layout.bases["warp"][2:]
    acc = None if is_zero(op.acc) else lowering.value(op.acc)
    size = entry.fragments.registers("acc")
    b = _Descriptors(lowering, op.b, 1 if op.b_transposed else 0, [basis[1] for basis in groups])
    b_shape = b.operand.shape
    steps = b_shape[b.operand.k_axis] // entry.k
    a = None
    if op.a_shared:
        rows = [basis[0] for basis in groups]
        a = _Descriptors(lowering, op.a, 0 if op.a_transposed else 1, rows)
    words = None if a is not None else _words(lowering.value(op.a))
    pieces = _pieces(layout, size)
    columns = len({piece.column for piece in pieces})
    ptx.WgmmaFenceOp.build()
    sums: list[ir.Value] = []
    for piece in pieces:
        if a is not None:
            left, a_steps = a.at(piece.row), a.steps(piece.row, entry.k, steps)
            turned = not a.operand.k_contiguous
        else:
            assert words is not None
            each = emit.registers_of(words) * columns // len(pieces)
            left, a_steps = emit.part(words, piece.number // columns * each, each), []
            turned = False
        part = None if acc is None else emit.part(acc, piece.number * size, size)
        run = ptx.WgmmaOp.build(
            part, left, b.at(piece.column),
            results=[emit.vector_of(size, element_of(op.acc.type))],
            shape=f"m64n{entry.n}k{entry.k}",
            types=_types(entry, op),
            a_steps=a_steps,
            b_steps=b.steps(piece.column, entry.k, steps),
            a_turned=turned or None,
            b_turned=(not b.operand.k_contiguous) or None,
        )  # fmt: skip
        sums.append(run.sums)
    ptx.WgmmaCommitOp.build()
    lowering.define(op.result, emit.concatenate(sums))


def _words(value: ir.Value) -> ir.Value:
    """Return an operand's registers as words."""
    return emit.bitcast(value, integer(32))


def _types(entry: Wgmma, op: tgpu.WarpgroupMmaOp) -> str:
    """Return the types as the instruction's name has them."""
    return entry.types.format(*("u8" if u else "s8" for u in (op.a_unsigned, op.b_unsigned)))


def _warpgroup_wait(lowering: Lowering, op: tgpu.WarpgroupWaitOp) -> None:
    value = lowering.value(op.tile)
    never = _never(lowering) if op.held else None
    made = ptx.WgmmaWaitOp.build(value, never, results=[value.type], pending=op.pending).result_
    lowering.define(op.result, made)


def _never(lowering: Lowering) -> ir.Value | None:
    """Build what is false, as nobody can tell who only sees the kernel: a tensor at address 0."""
    block = lowering.function.operation.regions[0].blocks[0]
    pointers = [one for one in block.arguments if is_pointer(one.type)]
    if not pointers:
        return None

    def compare() -> ir.Value:
        address = llvm.ptrtoint(integer(64), lowering.value(pointers[0]))
        return arith.cmpi(arith.CmpIPredicate.eq, address, emit.constant(integer(64), 0))

    return lowering.once("never", compare)


def _anchor(lowering: Lowering, op: tgpu.AnchorOp) -> None:
    value = lowering.value(op.tile)
    lowering.define(op.result, ptx.AnchorOp.build(value, results=[value.type]).result_)


def _set_registers(lowering: Lowering, op: tgpu.SetRegistersOp) -> None:
    del lowering
    ptx.SetRegistersOp.build(count=op.count, fewer=op.fewer or None)


HANDLERS: dict[str, Handler] = {
    "tgpu.warpgroup_mma": _warpgroup_mma,
    "tgpu.warpgroup_wait": _warpgroup_wait,
    "tgpu.anchor": _anchor,
    "tgpu.set_registers": _set_registers,
}
