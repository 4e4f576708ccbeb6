"""Run kernels of the `tile` and `tgpu` levels on NumPy arrays: the oracle of passes over control flow.

One program runs as if by one thread that holds whole tiles; layouts are ignored. A pointer is an
integer, `Memory` finds the array behind it and refuses what is out of bounds; `SharedMemory`
refuses what is read too early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from mlir import ir

from tests.transforms.arith_evaluator import Array, dtype_of, evaluate
from tests.transforms.shared_memory_model import SharedMemory
from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.types import held_by, is_pointer, layout_name, pointee, shape_of

_SPACE = 40
"""Bits of an address within one array's space."""


@dataclass
class Memory:
    """Global memory: the arrays that pointer arguments lead to.

    Attributes:
        arrays: By number.
        reads: Elements read so far, as (array, index).
        log: Stores in order, as (array, index, value).
    """

    arrays: list[Array]
    reads: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    log: list[tuple[int, int, Any]] = field(default_factory=list[tuple[int, int, Any]])

    def pointer(self, number: int) -> Array:
        """Return the address of the first element of an array."""
        return np.array((number + 1 << _SPACE) + (1 << _SPACE - 1), np.int64)

    def _place(self, address: int, size: int) -> tuple[int, int]:
        number, offset = (address >> _SPACE) - 1, address % (1 << _SPACE) - (1 << _SPACE - 1)
        assert 0 <= number < len(self.arrays), f"wild pointer {address:#x}"
        index, rest = divmod(offset, size)
        assert rest == 0, "misaligned access"
        assert 0 <= index < self.arrays[number].size, f"array {number} read at {index}"
        return number, index

    def read(self, address: int, size: int) -> Any:
        """Read one element of `size` bytes."""
        number, index = self._place(address, size)
        self.reads.append((number, index))
        return self.arrays[number].flat[index]

    def write(self, address: int, size: int, value: Any) -> None:
        """Write one element."""
        number, index = self._place(address, size)
        self.log.append((number, index, value))
        self.arrays[number].flat[index] = value


@dataclass
class Machine:
    """Runs kernels; see the module's docstring.

    Attributes:
        memory: What pointers lead to.
        program: The program's index along the axes of the grid.
        grid: Programs along each axis.
        shared: Its shared memory.
        block: Which of the blocks that run the program it is.
    """

    memory: Memory
    program: tuple[int, int, int] = (0, 0, 0)
    grid: tuple[int, int, int] = (1, 1, 1)
    shared: SharedMemory = field(default_factory=SharedMemory)
    values: dict[ir.Value, Any] = field(default_factory=dict[ir.Value, Any])
    block: int = 0

    def run(self, module: ir.Module, *arguments: Any) -> list[Any]:
        """Run the first public function of `module`; return what it returns."""
        for op in module.body.operations:
            operation = op.operation
            if operation.name == "func.func" and "sym_visibility" not in operation.attributes:
                block = operation.regions[0].blocks[0]
                self.values.update(zip(block.arguments, arguments, strict=True))
                with np.errstate(all="ignore"):
                    return self._block(block)
        raise AssertionError("expected a kernel")

    def _block(self, block: ir.Block) -> list[Any]:
        for op in block.operations:
            operands = [self.values[value] for value in op.operation.operands]
            if op.operation.name in ("scf.yield", "scf.condition", "func.return"):
                return operands
            results = self._operation(op, operands)
            self.values.update(zip(op.operation.results, results, strict=True))
        return []

    def _enter(self, block: ir.Block, arguments: Sequence[Any]) -> list[Any]:
        self.values.update(zip(block.arguments, arguments, strict=True))
        return self._block(block)

    def _operation(self, op: ir.OpView, operands: list[Any]) -> Sequence[Any]:
        operation = op.operation
        regions = operation.regions
        match operation.name:
            case "scf.for":
                low, high, step, *carried = operands
                body = regions[0].blocks[0]
                for i in range(int(low), int(high), int(step)):
                    counter = np.asarray(i).astype(dtype_of(body.arguments[0].type))
                    carried = self._enter(body, [counter, *carried])
                return carried
            case "scf.while":
                carried = operands
                while True:
                    more, *passed = self._enter(regions[0].blocks[0], carried)
                    if not more:
                        return passed
                    carried = self._enter(regions[1].blocks[0], passed)
            case "scf.if":
                side = regions[0 if operands[0] else 1]
                return self._block(side.blocks[0]) if len(side.blocks) else []
            case name if (shaped := _reshaped(op, operands)) is not None:
                return [shaped]
            case name if name in ("tile.cast", "tile.bitcast"):
                return [evaluate(op, operands)]
            case name if name.startswith(("tile.", "tgpu.")):
                return self._ours(op, operands)
            case name if name in _DIVIDE:
                found = _DIVIDE[name](*operands)
                return [np.asarray(found).astype(dtype_of(operation.results[0].type))]
            case _:
                return [evaluate(op, operands)]

    def _ours(self, op: ir.OpView, operands: list[Any]) -> Sequence[Any]:
        match op:
            case tile.ProgramIdOp():
                return [np.array(self.program[op.axis], np.int32)]
            case tile.NumProgramsOp():
                return [np.array(self.grid[op.axis], np.int32)]
            case tile.BlockIdOp():
                return [np.array(self.block, np.int32)]
            case tile.ScanOp():
                return [_scan(op.combine, operands[0], op.axis)]
            case tile.SplitOp():
                return [operands[0][..., 0], operands[0][..., 1]]
            case tile.LoadOp():
                return [self._load(op, op.result.type)]
            case tile.StoreOp():
                self._store(op)
                return []
            case tile.ReduceOp():
                return [_reduce(op.kind or op.combine, operands[0], op.axis)]
            case tile.DotOp() | tgpu.MmaOp() | tgpu.FmaDotOp():
                a, b, acc = operands
                wide = np.float64 if acc.dtype.kind != "i" else np.int64
                return [(np.matmul(a.astype(wide), b.astype(wide)) + acc).astype(acc.dtype)]
            case tile.FloorDivOp() | tile.FloorModOp():
                return [_floor(op, *operands)]
            case tile.BarrierOp():
                return []
            case tile.AssumeOp() | tile.AssertOp():
                assert np.all(operands[0])
                return []
            case _:
                return self._shared(op, operands)

    def _shared(self, op: ir.OpView, operands: list[Any]) -> Sequence[Any]:
        match op:
            case tgpu.ConvertLayoutOp():
                return operands
            case tgpu.AllocOp():
                shape, tile_shape = shape_of(held_by(op.buffer.type)), self._tile_shape(op)
                count = shape[0] if len(shape) > len(tile_shape) else 1
                return [self.shared.allocate(op.operation, count)]
            case tgpu.SlotOp():
                slots, index = operands
                assert 0 <= int(index) < len(slots), "no such slot"
                return [[slots[int(index)]]]
            case tgpu.LocalStoreOp():
                value, slots = operands
                self.shared.store(slots[0], value, layout_name(op.tile.type))
            case tgpu.LocalLoadOp():
                return [self.shared.load(operands[0][0], layout_name(op.tile.type))]
            case tgpu.AsyncCopyOp():
                self.shared.copy(operands[1][0], self._load(op, held_by(op.buffer.type)))
            case tgpu.AsyncCommitOp():
                self.shared.commit()
            case tgpu.AsyncWaitOp():
                self.shared.wait(op.pending)
            case tgpu.BarrierOp():
                self.shared.barrier()
            case _:
                raise AssertionError(f"no rule for {op.operation.name}")
        return []

    def _tile_shape(self, op: tgpu.AllocOp) -> tuple[int, ...]:
        for use in op.buffer.uses:
            if isinstance(use.owner, tgpu.SlotOp):
                return shape_of(held_by(use.owner.slot.type))
        return shape_of(held_by(op.buffer.type))

    def _load(self, op: tile.LoadOp | tgpu.AsyncCopyOp, type_: ir.Type) -> Array:
        size = dtype_of(pointee(op.ptr.type)).itemsize
        addresses = self.values[op.ptr]
        mask = np.ones_like(addresses, bool) if op.mask is None else self.values[op.mask]
        other = op.other if isinstance(op, tile.LoadOp) else None
        found = np.zeros(addresses.shape, dtype_of(type_))
        if other is not None:
            found[...] = self.values[other]
        for at in np.argwhere(mask):
            found[tuple(at)] = self.memory.read(int(addresses[tuple(at)]), size)
        return found

    def _store(self, op: tile.StoreOp) -> None:
        size = dtype_of(pointee(op.ptr.type)).itemsize
        addresses, values = self.values[op.ptr], self.values[op.value]
        mask = np.ones_like(addresses, bool) if op.mask is None else self.values[op.mask]
        for at in np.argwhere(mask):
            self.memory.write(int(addresses[tuple(at)]), size, values[tuple(at)])


def _reduce(kind: str, source: Array, axis: int) -> Array:
    functions: dict[str, Callable[..., Any]] = {
        "add": np.sum,
        "max": np.max,
        "min": np.min,
        "first": partial(_one_along, 0),
        "last": partial(_one_along, -1),
    }
    return np.asarray(functions[kind.partition("_")[0]](source, axis)).astype(source.dtype)


def _one_along(place: int, source: Array, axis: int) -> Array:
    return np.take(source, place, axis)


def _scan(combine: str, source: Array, axis: int) -> Array:
    if combine.startswith("last"):
        return source
    return np.cumsum(source, axis).astype(source.dtype)


def _read_unsigned(op: ir.OpView, *operands: Array) -> list[Array]:
    signed = isinstance(op, tile.FloorDivOp | tile.FloorModOp) and op.signed
    arrays = [x if signed else x.view(f"u{x.dtype.itemsize}") for x in operands]
    return [x.astype(object) for x in arrays]


def _floor(op: tile.FloorDivOp | tile.FloorModOp, x: Array, y: Array) -> Array:
    def one(a: int, b: int) -> int:
        found = 0 if b == 0 else a // b if isinstance(op, tile.FloorDivOp) else a % b
        half = 1 << (8 * x.dtype.itemsize - 1)
        return (found + half) % (2 * half) - half

    left, right = _read_unsigned(op, x, y)
    found: Any = np.frompyfunc(one, 2, 1)(left, right)
    return np.asarray(found, object).astype(x.dtype)


def _truncating(remainder: bool, signed: bool) -> Callable[[Array, Array], Array]:
    def one(a: int, b: int) -> int:
        assert b != 0, "division by zero"
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return a - quotient * b if remainder else quotient

    def divide(x: Array, y: Array) -> Array:
        arrays = [v if signed else v.view(f"u{v.dtype.itemsize}") for v in (x, y)]
        found: Any = np.frompyfunc(one, 2, 1)(*(v.astype(object) for v in arrays))
        result = np.asarray(found, object)
        if signed:
            assert np.all(result < 1 << (8 * x.dtype.itemsize - 1)), "quotient overflows"
        half = 1 << (8 * x.dtype.itemsize - 1)
        return np.asarray((result + half) % (2 * half) - half).astype(x.dtype)

    return divide


_DIVIDE = {
    "arith.divsi": _truncating(False, True),
    "arith.divui": _truncating(False, False),
    "arith.remsi": _truncating(True, True),
    "arith.remui": _truncating(True, False),
}


def _addptr(op: tile.AddPtrOp, ptr: Array, offset: Array) -> Array:
    return ptr + offset.astype(np.int64) * dtype_of(pointee(op.ptr.type)).itemsize


def _dense(op: ir.OpView) -> Array:
    attribute = op.operation.attributes["value"]
    type_ = op.operation.results[0].type
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return np.broadcast_to(evaluate(op, []), shape_of(type_))
    if isinstance(attribute, ir.DenseElementsAttr):
        return np.array(attribute).astype(dtype_of(type_))
    return evaluate(op, [])


def _reshaped(op: ir.OpView, a: list[Array]) -> Array | None:
    """Give the result of an op that makes or changes a shape; None for other ops."""
    match op:
        case tile.MakeRangeOp():
            return np.arange(op.start, op.end, dtype=np.int32)
        case tile.SplatOp() | tile.BroadcastOp():
            return np.broadcast_to(a[0], shape_of(op.tile.type))
        case tile.ExpandDimsOp():
            return np.expand_dims(a[0], op.axis)
        case tile.ReshapeOp():
            return a[0].reshape(shape_of(op.tile.type))
        case tile.TransOp():
            return a[0].transpose(op.order)
        case tile.JoinOp():
            return np.stack(a, -1)
        case tile.CatOp():
            return np.concatenate(a, op.axis)
        case tile.AddPtrOp():
            return _addptr(op, *a)
        case tile.HintOp():
            return a[0]
        case tile.BitcastOp() if is_pointer(op.source.type):
            return a[0]
        case _:
            return _dense(op) if op.operation.name == "arith.constant" else None
