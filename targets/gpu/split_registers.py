"""Cut long vectors of registers into short ones, and do each piece of work where it is needed.

A tile is one vector of a thread's registers, and an op on it one op, whatever its length. Where a
thread holds many registers and LLVM schedules what it is given, that is the wrong order: it does
every op of a long computation for all registers before the next op, with all of them alive at once,
and looks for a better one among thousands of instructions. Here vectors longer than `width` become
vectors of that length, and every op moves down to the first that needs it, which leaves the
computation of one piece in one place: the piece that a store writes just before that store.

What touches memory or other threads stays in order, so loads from global memory stay as early as
they were (but for those that are marked `tgpu.late`), and so does what `keep_order` marks: the
multiply-adds of a product, step by step along k, where a sum at a time would hold all its operands
at once. Reads of shared memory move down too, among what writes none: the operands of a matrix
instruction are read just before it, not all operands of all of them first. In kernels that keep
tiles there (`tgpu.pieces`, which also says how long pieces are) they pass accesses of global memory
as well.

Before: the `machine` level.
After: the same; elementwise ops and shuffles have results of at most `width` registers.

    %c = arith.mulf %a, %b : vector<64xf32>
    %d = vector.extract_strided_slice %c {offsets = [8], ...} : vector<64xf32> to vector<8xf32>
becomes
    %d = arith.mulf %a1, %b1 : vector<8xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from mlir import ir
from mlir.dialects import arith, llvm

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit
from tiledsl.transforms.effects import is_pure

_PURE_LLVM = frozenset(
    f"llvm.{name}"
    for name in (
        *("getelementptr", "mlir.addressof", "mlir.constant", "mlir.poison", "mlir.zero"),
        *("bitcast", "ptrtoint", "inttoptr", "extractvalue"),
    )
)
_QUIET_INTRINSICS = tuple(
    f"llvm.{name}" for name in ("amdgcn.mfma.", "amdgcn.wmma.", "amdgcn.permlane", "nvvm.mma.")
)
"""Intrinsics that neither write memory nor wait for who does."""

_PURE_INTRINSICS = ("llvm.amdgcn.perm",)
"""Intrinsics that only compute."""
_FUNCTIONS = tuple(
    f"llvm.nvvm.{name}.approx" for name in ("ex2", "lg2", "rsqrt", "sin", "cos", "tanh")
)
"""Intrinsics that are functions of a number; they take long enough to be worth their place."""
_IN_FLIGHT = "ptx.wgmma"

_IN_ORDER = "tgpu.in_order"


def keep_order(value: ir.Value) -> None:
    """Let what computes a value stay behind what it now stands behind."""
    value.owner.attributes[_IN_ORDER] = ir.UnitAttr.get()


def split_registers(module: ir.Module, *, width: int = 8) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        width: The longest vector, a power of two, in kernels that do not say it (`tgpu.PIECES`).
    """
    for op in module.body.operations:
        if op.operation.name != "llvm.func":
            continue
        held: Any = op.operation.attributes
        by_pieces = tgpu.PIECES in held
        splitter = _Splitter(held[tgpu.PIECES].value if by_pieces else width)
        for inner in list(operations(op.operation)):
            splitter.visit(inner)
        splitter.finish()
        _sink_region(op.operation.regions[0], by_pieces)


# Splitting.

Parts = list[ir.Value]


class _Splitter:
    """Pieces of the long vectors seen so far, and the ops that they replace."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._parts: dict[ir.Value, Parts] = {}
        self._replaced: list[ir.OpView] = []
        self._rules: dict[str, Callable[[Any], Parts | None]] = {
            "arith.constant": self._constant,
            "vector.broadcast": self._broadcast,
            "vector.shuffle": self._shuffle,
            "vector.extract_strided_slice": self._slice,
            "vector.bitcast": self._bitcast,
            "vector.from_elements": self._from_elements,
        }

    def visit(self, op: ir.OpView) -> None:
        """Build the pieces of an op's result, or read pieces in place of a long operand."""
        name = op.operation.name
        touches = [*op.operation.results, *op.operation.operands]
        if not any(self._is_long(value.type) for value in touches):
            return
        with ir.InsertionPoint(op), op.operation.location:
            if name == "vector.extract":
                self._extract(op)
                return
            if name == "vector.to_elements":
                self._to_elements(op)
                return
            rule = self._rules.get(name)
            if rule is None and name.startswith(("arith.", "math.")):
                rule = self._elementwise
            made = rule(op) if rule is not None else None
        if made is not None:
            self._parts[op.operation.results[0]] = made
            self._replaced.append(op)

    def finish(self) -> None:
        """Join the pieces for who takes the whole vector, and erase what was replaced."""
        for op in reversed(self._replaced):
            result = op.operation.results[0]
            if next(iter(result.uses), None) is not None:
                with ir.InsertionPoint(op), op.operation.location:
                    result.replace_all_uses_with(emit.concatenate(self._parts[result]))
            op.operation.erase()

    def _is_long(self, type_: ir.Type) -> bool:
        return isinstance(type_, ir.VectorType) and type_.shape[0] > self._width

    def _count(self, registers: int) -> int:
        """Give how many pieces a vector has."""
        return max(1, registers // self._width)

    def _pieces(self, value: ir.Value) -> Parts:
        """Give a vector's pieces; of one that nothing here made, as slices behind what made it."""
        if not self._is_long(value.type):
            return [value]
        found = self._parts.get(value)
        if found is None:
            found = self._parts[value] = self._sliced(value)
        return found

    def _sliced(self, value: ir.Value) -> Parts:
        owner = value.owner
        if isinstance(owner, ir.Block):
            place = ir.InsertionPoint.at_block_begin(owner)
        else:
            place = ir.InsertionPoint.after(owner.operation)
        with place:
            count = self._count(emit.registers_of(value))
            return [emit.part(value, i * self._width, self._width) for i in range(count)]

    def _gather(self, sources: Sequence[Parts], indices: Sequence[int]) -> ir.Value:
        """Return registers of vectors that lie one behind the other, as one short vector."""
        pieces = [piece for source in sources for piece in source]
        length = emit.registers_of(pieces[0])
        used = sorted({i // length for i in indices if i >= 0})
        if len(used) <= 2:
            first, second = pieces[used[0] if used else 0], pieces[used[-1] if used else 0]
            start = {number: k * length for k, number in enumerate(used)}
            order = [start[i // length] + i % length if i >= 0 else emit.POISON for i in indices]
            return emit.shuffle(first, order, second)
        # From so many places registers come one by one.
        scalars = {i: emit.extract(pieces[i // length], i % length) for i in set(indices) - {-1}}
        scalars[emit.POISON] = llvm.mlir_poison(emit.scalar_of(pieces[0].type))
        return emit.from_elements([scalars[i] for i in indices])

    # Rules: the pieces of an op's result, or None to leave the op as it is.

    def _elementwise(self, op: ir.OpView) -> Parts | None:
        operation = op.operation
        results = list(operation.results)
        if len(results) != 1 or not self._is_long(results[0].type):
            return None
        held: Any = operation.attributes
        attributes = {name: held[name] for name in held}
        operands = [self._pieces(v) if emit.is_vector(v.type) else [v] for v in operation.operands]
        type_ = emit.vector_of(self._width, emit.scalar_of(results[0].type))
        count = self._count(emit.registers_of(results[0]))
        create: Any = cast("Any", ir.Operation).create
        return [
            create(
                operation.name,
                results=[type_],
                operands=[pieces[i % len(pieces)] for pieces in operands],
                attributes=attributes,
            ).result
            for i in range(count)
        ]

    def _constant(self, op: ir.OpView) -> Parts | None:
        result, value = op.operation.results[0], op.operation.attributes["value"]
        if not self._is_long(result.type) or not isinstance(value, ir.DenseElementsAttr):
            return None
        element, count = emit.scalar_of(result.type), self._count(emit.registers_of(result))
        if value.is_splat:
            type_ = emit.vector_of(self._width, element)
            splat = ir.DenseElementsAttr.get_splat(type_, value.get_splat_value())
            return [arith.constant(type_, splat)] * count
        if not isinstance(value, ir.DenseIntElementsAttr) or element == emit.integer(1):
            return None
        numbers = np.array(value).reshape(count, self._width)
        return [emit.constants(part, emit.width_of(element)) for part in numbers.tolist()]

    def _broadcast(self, op: Any) -> Parts | None:
        result, source = op.operation.results[0], op.operation.operands[0]
        if emit.is_vector(source.type):
            return None
        made = emit.splat(source, self._width)
        return [made] * self._count(emit.registers_of(result))

    def _shuffle(self, op: Any) -> Parts | None:
        result = op.operation.results[0]
        sources = [self._pieces(v) for v in op.operation.operands]
        lengths = {emit.registers_of(pieces[0]) for pieces in sources}
        if len(lengths) > 1:
            return None
        return self._cut(result, sources, [int(i) for i in op.mask])

    def _slice(self, op: Any) -> Parts | None:
        result = op.operation.results[0]
        start, count = int(op.offsets[0].value), emit.registers_of(result)
        return self._cut(result, [self._pieces(op.source)], range(start, start + count))

    def _cut(self, result: ir.Value, sources: Sequence[Parts], indices: Sequence[int]) -> Parts:
        """Gather a result's pieces."""
        count = self._count(emit.registers_of(result))
        each = len(indices) // count
        return [self._gather(sources, indices[i * each : (i + 1) * each]) for i in range(count)]

    def _bitcast(self, op: Any) -> Parts | None:
        result, source = op.operation.results[0], op.operation.operands[0]
        pieces = self._pieces(source)
        before, after = emit.registers_of(source), emit.registers_of(result)
        count, element = self._count(after), emit.scalar_of(result.type)
        if count != len(pieces):
            each = before // count
            pieces = [self._gather([pieces], range(i * each, (i + 1) * each)) for i in range(count)]
        return [emit.bitcast(piece, element) for piece in pieces]

    def _from_elements(self, op: Any) -> Parts | None:
        scalars = list(op.operation.operands)
        return [
            emit.from_elements(scalars[i : i + self._width])
            for i in range(0, len(scalars), self._width)
        ]

    def _extract(self, op: Any) -> None:
        index = int(op.static_position[0])
        if op.operation.operands[1:] or index < 0:
            return
        piece, place = divmod(index, self._width)
        made = emit.extract(self._pieces(op.operation.operands[0])[piece], place)
        op.operation.results[0].replace_all_uses_with(made)
        op.operation.erase()

    def _to_elements(self, op: Any) -> None:
        pieces = self._pieces(op.operation.operands[0])
        scalars = [scalar for piece in pieces for scalar in emit.elements(piece)]
        for old, new in zip(op.operation.results, scalars, strict=True):
            old.replace_all_uses_with(new)
        op.operation.erase()


# Sinking.


def _sink_region(region: ir.Region, by_pieces: bool) -> None:
    """Sink within every block of a region and below."""
    for block in region.blocks:
        _sink(block, by_pieces)
        for op in block.operations:
            for inner in op.operation.regions:
                _sink_region(inner, by_pieces)


def _sink(block: ir.Block, by_pieces: bool) -> None:
    """Move every pure op of a block before the first op that needs it; erase those none needs.

    Args:
        block: The block.
        by_pieces: Whether reads of shared memory move down past accesses of global memory, too:
            each piece is then read for its own store, not all for the first one.
    """
    ops = list(block.operations)
    index = {op.operation: i for i, op in enumerate(ops)}
    done = [False] * len(ops)
    order: list[int] = []

    def need(last: int) -> None:
        """Add an op behind what it needs, without recursion, which chains of ops would exhaust."""
        stack = [(last, _needs(ops[last], index))]
        done[last] = True
        while stack:
            current, needed = stack[-1]
            following = next((i for i in needed if not done[i]), None)
            if following is None:
                order.append(current)
                stack.pop()
            else:
                done[following] = True
                stack.append((following, _needs(ops[following], index)))

    def need_all(some: list[int]) -> None:
        for one in some:
            if not done[one]:
                need(one)
        some.clear()

    reads: list[int] = []
    calls: list[int] = []
    for i, op in enumerate(ops):
        if _reads_shared(op):
            reads.append(i)
        elif _is_function(op):
            calls.append(i)
        elif not _is_movable(op):
            if op.operation.regions or op.operation.name.startswith(_IN_FLIGHT):
                need_all(calls)
            if not (_leaves_shared(op) or (by_pieces and _is_global(op))):
                need_all(reads)
            need(i)
    *rest, end = order
    for i in rest:
        ops[i].operation.move_before(ops[end].operation)
    for i in reversed(range(len(ops))):
        if not done[i]:
            ops[i].operation.erase()


def _is_movable(op: ir.OpView) -> bool:
    """Whether an op only computes, or may as well be done later."""
    name = op.operation.name
    if _IN_ORDER in op.operation.attributes:
        return False
    if tgpu.LATE in op.operation.attributes:
        return True
    if name == "llvm.call_intrinsic":
        return ir.StringAttr(op.operation.attributes["intrin"]).value in _PURE_INTRINSICS
    return is_pure(op) or name.startswith("vector.") or name in _PURE_LLVM


def _is_function(op: ir.OpView) -> bool:
    """Whether an op is a call of a function of numbers."""
    if op.operation.name != "llvm.call_intrinsic":
        return False
    return ir.StringAttr(op.operation.attributes["intrin"]).value.startswith(_FUNCTIONS)


def _reads_shared(op: ir.OpView) -> bool:
    """Whether an op is an ordinary load from shared memory."""
    if op.operation.name != "llvm.load" or "volatile_" in op.operation.attributes:
        return False
    return op.operation.operands[0].type == emit.pointer_type(3)


def _leaves_shared(op: ir.OpView) -> bool:
    """Whether shared memory is surely the same before and after an op that must stay in order."""
    name = op.operation.name
    if name == "llvm.call_intrinsic":
        called = ir.StringAttr(op.operation.attributes["intrin"]).value
        return called.startswith(_QUIET_INTRINSICS)
    return (
        is_pure(op)
        or name == "llvm.load"
        or (name.startswith("rocdl.") and name != "rocdl.s.barrier")
    )


def _is_global(op: ir.OpView) -> bool:
    """Whether an op reads or writes global memory, and nothing else."""
    name = op.operation.name
    if name == "llvm.store":
        return op.operation.operands[1].type == emit.pointer_type(1)
    return name in ("ptx.load", "ptx.store")


def _needs(op: ir.OpView, index: dict[ir.Operation, int]) -> Iterator[int]:
    """Give the ops of the block whose results an op, or an op inside it, takes."""
    for inner in (op, *operations(op)) if op.operation.regions else (op,):
        for operand in inner.operation.operands:
            owner = operand.owner
            if (
                not isinstance(owner, ir.Block)
                and (found := index.get(owner.operation)) is not None
            ):
                yield found
