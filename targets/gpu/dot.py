"""Matrix products: instruction by instruction on slices of registers, or fused multiply-adds.

`tgpu.mma`'s layouts keep each instruction's registers together and in a known order
(`layout_mma`), so an operand of one instruction is a slice of the tile's vector. Instructions go
along k outermost: those next to each other do not wait for each other's sums. Of a step's operands
those that take fewer registers are held, and the others pass (unless the assembler decides that).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_dialect

from tiledsl.dialects import tgpu
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout_mma import Fragments, fma_operands
from tiledsl.dialects.types import shape_of
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.fp8 import to_f32
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.machine import Fragment
from tiledsl.targets.gpu.shape import registers_between
from tiledsl.targets.gpu.split_registers import keep_order
from tiledsl.targets.gpu.types import is_fp8


@dataclass(frozen=True)
class Counts:
    """How a thread's registers split into instructions.

    Attributes:
        batch: Products.
        m: Instructions along m, of one product.
        n: Along n.
        k: Along k.
    """

    batch: int
    m: int
    n: int
    k: int


def _count(op: tgpu.MmaOp, fragments: Fragments, a: ir.Value, b: ir.Value, acc: ir.Value) -> Counts:
    *batch, _, depth = shape_of(op.a.type)
    products = batch[0] if batch else 1
    k = depth * fragments.k_steps // fragments.a.shape[1]
    held = {name: fragments.registers(name) for name in ("a", "b", "acc")}
    m = emit.registers_of(a) // (products * k * held["a"])
    n = emit.registers_of(b) // (products * k * held["b"])
    if products * m * n * held["acc"] != emit.registers_of(acc):
        raise CompilerBug(f"expected operands in layouts of {op.instruction}, found {op}")
    return Counts(products, m, n, k)


def _mma(lowering: Lowering, op: tgpu.MmaOp) -> None:
    table = lowering.machine.table
    entry, fragments = table.entry(op.instruction), table.fragments(op.instruction)
    a, b, acc = (lowering.value(v) for v in (op.a, op.b, op.acc))
    counts = _count(op, fragments, a, b, acc)
    size = {name: fragments.registers(name) for name in ("a", "b", "acc")}
    unsigned: tuple[bool, bool] = (op.a_unsigned, op.b_unsigned)
    if fragments.swapped:
        unsigned = unsigned[1], unsigned[0]

    machine = lowering.machine

    def fragments_of(value: ir.Value, name: str) -> list[Fragment]:
        starts = range(0, emit.registers_of(value), size[name])
        pieces = (emit.part(value, start, size[name]) for start in starts)
        return [machine.mma_fragment(entry, piece) for piece in pieces]

    sums, lefts, rights = fragments_of(acc, "acc"), fragments_of(a, "a"), fragments_of(b, "b")
    by_rows = machine.orders_products or goes_by_rows(a, b, counts)
    for kk in range(counts.k):
        for row, column in places(counts, by_rows):
            left = lefts[row * counts.k + kk]
            right = rights[(row // counts.m * counts.n + column) * counts.k + kk]
            if fragments.swapped:
                left, right = right, left
            i = row * counts.n + column
            sums[i] = machine.mma(entry, left, right, sums[i], unsigned)
    lowering.define(op.result, machine.mma_result(entry, sums))


def goes_by_rows(a: ir.Value, b: ir.Value, counts: Counts) -> bool:
    """Whether it is b's fragments of a step that should be held while a's pass, one by one.

    It is where that takes no more registers than the other way round.
    """
    left, right = (
        emit.registers_of(v) * emit.width_of(v.type) // counts.batch // counts.k for v in (a, b)
    )
    return right + left // counts.m <= left + right // counts.n


def places(counts: Counts, by_rows: bool) -> Iterator[tuple[int, int]]:
    """Give rows, those of all products one behind the other, and columns of instructions."""
    for product in range(counts.batch):
        rows = range(product * counts.m, (product + 1) * counts.m)
        columns = range(counts.n)
        if by_rows:
            yield from ((row, column) for row in rows for column in columns)
        else:
            yield from ((row, column) for column in columns for row in rows)


def _fma_dot(lowering: Lowering, op: tgpu.FmaDotOp) -> None:
    layout = lowering.layout(op.acc)
    depth = shape_of(op.a.type)[-1]
    wanted = fma_operands(layout, depth)
    acc = lowering.value(op.acc)
    kept = emit.scalar_of(acc.type)
    # Products are summed in f32 at least; f16 and bf16 are rounded once, at the end.
    summed = ir.F32Type.get() if emit.width_of(kept) < 32 else kept
    a = _operand(lowering, op.a, wanted.a, summed, op.a_unsigned, op)
    b = _operand(lowering, op.b, wanted.b, summed, op.b_unsigned, op)
    if summed != kept:
        acc = arith.extf(emit.resized(acc.type, summed), acc)
    rows, columns = wanted.a.registers // depth, wanted.b.registers // depth
    for i in range(depth):
        x = emit.shuffle(a, wanted.a_row + i * rows)
        y = emit.shuffle(b, wanted.b_column + i * columns)
        if isinstance(summed, ir.IntegerType):
            acc = arith.addi(arith.muli(x, y), acc)
        else:
            acc = math_dialect.fma(x, y, acc)
        keep_order(acc)
    if summed != kept:
        acc = arith.truncf(emit.resized(acc.type, kept), acc)
    lowering.define(op.result, acc)


def _operand(
    lowering: Lowering, old: ir.Value, layout: Any, summed: ir.Type, unsigned: bool, op: Any
) -> ir.Value:
    """Return an operand's registers in the order of `layout`, in the type that sums are in."""
    order = registers_between(lowering.layout(old), layout, op)
    value = emit.shuffle(lowering.value(old), order)
    source = element_type(old)
    if is_fp8(source):
        value, source = to_f32(value, source), ir.F32Type.get()
    wanted = emit.resized(value.type, summed)
    if source == summed:
        return value
    if isinstance(summed, ir.IntegerType):
        return arith.extui(wanted, value) if unsigned else arith.extsi(wanted, value)
    return arith.extf(wanted, value)


HANDLERS: dict[str, Handler] = {"tgpu.mma": _mma, "tgpu.fma_dot": _fma_dot}
