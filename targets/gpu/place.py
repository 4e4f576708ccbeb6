"""A thread's place in the program, and what follows from it linearly.

Which element a register holds is a linear function over F2 of the thread's number
(`LinearLayout`), so an index, an offset in shared memory or "is this the first copy" is a few ands,
shifts and xors of that number. Each such function is built once, at the kernel's entry, and shared.

Contract: the thread's number is lane + warp * warp size, and warps are numbered alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Machine

_NSW = arith.IntegerOverflowFlags.nsw
_NO_WRAP = arith.IntegerOverflowFlags.nsw | arith.IntegerOverflowFlags.nuw


def thread_columns(layout: LinearLayout) -> tuple[int, ...]:
    """Return where each bit of the thread's number moves to: lane bits, then warp bits.

    Raises:
        CompilerBug: The layout spreads over the blocks of a cluster.
    """
    if layout.bits("block"):
        raise CompilerBug(f"expected a layout within one block, found {layout}")
    return (*layout.flat("lane"), *layout.flat("warp"))


class Place:
    """The entry of one kernel, where values that depend on the thread alone are built.

    Made at the start of the kernel's entry block.
    """

    def __init__(self, machine: Machine, threads: int) -> None:
        self.machine = machine
        # That it is below their number proves masks: of many elements a thread holds, some are
        # inside of a row, or beyond its end, whichever thread it is.
        self.thread = machine.thread_id(threads)
        self._end = emit.i32(0).owner
        self._linear: dict[tuple[int, ...], ir.Value] = {}
        self._clear: dict[int, ir.Value] = {}

    def at_entry(self) -> ir.InsertionPoint:
        """Return where to build what the whole kernel may use."""
        return ir.InsertionPoint(self._end)

    def linear(self, columns: Sequence[int]) -> ir.Value | None:
        """Return the xor of the columns of the thread number's set bits, an i32; None for zero."""
        key = tuple(columns)
        if not any(key):
            return None
        if key not in self._linear:
            with self.at_entry():
                self._linear[key] = self._build(key)
        return self._linear[key]

    def _build(self, columns: tuple[int, ...]) -> ir.Value:
        """Gather the bits that move by one distance: (thread & mask) << distance."""
        masks: dict[int, int] = {}
        for bit, column in enumerate(columns):
            for target in range(column.bit_length()):
                if column >> target & 1:
                    masks[target - bit] = masks.get(target - bit, 0) | 1 << bit
        total: ir.Value | None = None
        covered = 0
        for distance, mask in sorted(masks.items()):
            # The highest bits need no mask: the thread's number has no others.
            term = arith.andi(self.thread, emit.i32(mask))
            if distance > 0:
                term = arith.shli(term, emit.i32(distance), overflow_flags=_NO_WRAP)
            elif distance < 0:
                term = arith.shrui(term, emit.i32(-distance))
            image = mask << distance if distance > 0 else mask >> -distance
            if total is None:
                total = term
            elif covered & image:
                total = arith.xori(total, term)
            else:
                total = arith.addi(total, term, overflow_flags=_NO_WRAP)
            covered |= image
        assert total is not None  # some column is not zero
        return total

    def mixed(self, columns: Sequence[int], constant: int) -> ir.Value | None:
        """Return `linear(columns) ^ constant`, built at the entry; None for zero."""
        first = self.linear(columns)
        if not constant:
            return first
        key = (*columns, -constant)
        if key not in self._linear:
            with self.at_entry():
                number = emit.i32(constant)
                self._linear[key] = number if first is None else arith.xori(first, number)
        return self._linear[key]

    def index(self, columns: Sequence[int], registers: IntArray, start: int = 0) -> ir.Value:
        """Return `start + (linear(columns) ^ registers[r])` for each register, a vector of i32."""
        first = self.linear(columns)
        if first is None:
            return emit.constants(registers + start)
        spread = emit.splat(first, len(registers))
        if len(registers) == 1 and not registers[0] + start:
            return spread
        if is_additive(columns, registers):
            return arith.addi(spread, emit.constants(registers + start), overflow_flags=_NSW)
        mixed = arith.xori(spread, emit.constants(registers))
        return arith.addi(mixed, emit.constants([start] * len(registers))) if start else mixed

    def is_clear(self, mask: int) -> ir.Value | None:
        """Return whether the thread's number has no bit of `mask`; None if that is always so."""
        if not mask:
            return None
        if mask not in self._clear:
            with self.at_entry():
                held = arith.andi(self.thread, emit.i32(mask))
                self._clear[mask] = emit.compare("eq", held, emit.i32(0))
        return self._clear[mask]

    def holds_first(self, layout: LinearLayout) -> ir.Value | None:
        """Return whether this thread is the first holder of its elements; None if all are."""
        free = layout.free_masks()
        return self.is_clear(free["lane"] | free["warp"] << layout.bits("lane"))

    def is_first(self, threads: int) -> ir.Value | None:
        """Return whether this is thread 0 of so many."""
        return self.is_clear(threads - 1)


def is_additive(columns: Sequence[int], registers: IntArray) -> bool:
    """Return whether no bit can be set both by a thread and by a register: xor is then addition."""
    moved = 0
    for column in columns:
        moved |= column
    return not any(moved & int(offset) for offset in registers)


def first_registers(layout: LinearLayout) -> list[int]:
    """Return the registers that are the first of a thread to hold their element."""
    free = layout.free_masks()["register"]
    return [r for r in range(layout.registers) if not r & free]
