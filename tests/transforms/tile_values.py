"""Run a kernel at the `tile` or `tgpu` level on NumPy arrays: what its ops mean, without threads.

Covers the ops that `tile_kernels.Kernel` builds. A pointer is an integer: the argument's number in
the high 32 bits, the element's index in the low ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import element_of, is_pointer, shape_of
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.rewrite import terminator

Array = npt.NDArray[Any]
_TYPES = {"i1": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64, "f16": np.float16,
          "f32": np.float32}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": np.add,
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.muli": np.multiply,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.andi": np.bitwise_and,
    "arith.maxsi": np.maximum,
    "arith.maximumf": np.maximum,
    "arith.cmpi": np.less,
    "arith.cmpf": np.less,
    "tile.addptr": np.add,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.absf": np.abs,
    "arith.extf": np.asarray,
}


def dtype_of(type_: ir.Type) -> npt.DTypeLike:
    return np.int64 if is_pointer(type_) else _TYPES[str(element_of(type_))]


def execute(module: ir.Module, arguments: Sequence[Array | int]) -> list[Array]:
    """Run the kernel and give its array arguments as they are afterwards."""
    (kernel,) = kernels(module)
    machine = _Machine(module, [np.array(a) for a in arguments])
    for i, argument in enumerate(body(kernel).arguments):
        pointer = is_pointer(argument.type)
        machine.values[argument] = np.int64(i << 32) if pointer else machine.memory[i]
    machine.block(body(kernel))
    return [a for a in machine.memory if a.ndim]


class _Machine:
    def __init__(self, module: ir.Module, memory: list[Array]) -> None:
        self.layouts = Layouts(module)
        self.functions = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.memory = memory
        self.values: dict[ir.Value, Any] = {}
        self.held: dict[ir.Value, Any] = {}

    def block(self, block: ir.Block) -> None:
        for op in block.operations:
            self.op(op)

    def op(self, op: ir.OpView) -> None:
        operation = op.operation
        name = operation.name
        if name in ("scf.for", "scf.if"):
            self._control(operation)
            return
        if name in ("scf.yield", "func.return", "tgpu.alloc", "tgpu.barrier"):
            return
        if isinstance(op, tgpu.LocalStoreOp):
            self.held[op.buffer] = self.values[op.tile]
            return
        found = self._value(op)
        many = cast("list[Any]", found) if isinstance(found, list) else [found]
        for result, value in zip(operation.results, many, strict=False):
            array = np.asarray(value).astype(dtype_of(result.type))
            assert array.shape == shape_of(result.type), f"{array.shape} from {op}"
            self.values[result] = array

    def _control(self, op: ir.Operation) -> None:
        if op.name == "scf.if":
            side = 0 if self.values[op.operands[0]] else 1
            block = op.regions[side].blocks[0]
            self.block(block)
            carried = [self.values[v] for v in terminator(block).operands]
        else:
            block = op.regions[0].blocks[0]
            start, stop, step, *carried = (self.values[v] for v in op.operands)
            for i in range(int(start), int(stop), int(step)):
                values = [np.int32(i), *carried]
                self.values.update(zip(block.arguments, values, strict=True))
                self.block(block)
                carried = [self.values[v] for v in terminator(block).operands]
        self.values.update(zip(op.results, carried, strict=True))

    def _value(self, op: ir.OpView) -> Any:
        operation = op.operation
        operands: list[Any] = [self.values.get(v) for v in operation.operands]
        name = operation.name
        with np.errstate(all="ignore"):
            if name in _BINARY:
                return _BINARY[name](*operands)
            if name == "arith.select":
                return cast("Array", np.where(operands[0], operands[1], operands[2]))
            if name in _UNARY:
                return _UNARY[name](*operands)
        shape = shape_of(operation.results[0].type) if len(operation.results) else ()
        match op:
            case tile.ReduceOp() | tile.ScanOp() | tgpu.PartialReduceOp():
                return self._combine(op, [cast("Array", a) for a in operands])
            case tile.LoadOp():
                return self._load(op, operands)
            case tile.StoreOp():
                return self._store(op, operands)
            case tile.DotOp() | tgpu.FmaDotOp() | tgpu.MmaOp():
                return _multiply(operands[0], operands[1], operands[2])
            case tgpu.LocalLoadOp():
                return self.held[op.buffer]
            case tile.MakeRangeOp():
                return np.arange(int(op.start), int(op.end))
            case tile.SplatOp():
                return np.full(shape, operands[0])
            case tile.ExpandDimsOp():
                return np.expand_dims(cast("Array", operands[0]), op.axis)
            case tile.BroadcastOp():
                return np.broadcast_to(cast("Array", operands[0]), shape)
            case tile.ReshapeOp():
                return cast("Array", operands[0]).reshape(shape)
            case tile.TransOp():
                return np.transpose(cast("Array", operands[0]), op.order)
            case tile.JoinOp():
                return np.stack([cast("Array", x) for x in operands], axis=-1)
            case tile.SplitOp():
                return [cast("Array", operands[0])[..., i] for i in range(2)]
            case tile.CatOp():
                return np.concatenate([cast("Array", x) for x in operands], axis=op.axis)
            case tile.BitcastOp():
                return np.asarray(operands[0]).view(dtype_of(op.result.type))
            case tile.CastOp() | tgpu.ConvertLayoutOp():
                return operands[0]
            case _ if name == "arith.constant":
                return _constant(operation)
            case _ if name == "tile.program_id":
                return 0
            case _:
                raise NotImplementedError(name)

    def _call(self, function: str, arguments: list[Any]) -> list[Any]:
        block = self.functions[function].regions[0].blocks[0]
        self.values.update(zip(block.arguments, arguments, strict=True))
        self.block(block)
        return [self.values[v] for v in terminator(block).operands]

    def _combine(
        self, op: tile.ReduceOp | tile.ScanOp | tgpu.PartialReduceOp, arrays: list[Array]
    ) -> list[Any]:
        if isinstance(op, tgpu.PartialReduceOp):
            return self._partial(op, arrays)
        lines = [np.moveaxis(a, op.axis, 0) for a in arrays]
        sums = [[line[0] for line in lines]]
        for i in range(1, len(lines[0])):
            sums.append(self._each(op.combine, sums[-1], [line[i] for line in lines]))
        if isinstance(op, tile.ReduceOp):
            return sums[-1]
        return [
            np.moveaxis(np.stack([one[k] for one in sums]), 0, op.axis) for k in range(len(arrays))
        ]

    def _each(self, combine: str, left: list[Any], right: list[Any]) -> list[Any]:
        """Combine elementwise, by calls on scalars."""
        flat = [np.ravel(np.asarray(a)) for a in (*left, *right)]
        results = [self._call(combine, list(args)) for args in zip(*flat, strict=True)]
        shape = np.shape(left[0])
        columns = zip(*results, strict=True)
        return [
            np.array(column, dtype=np.asarray(a).dtype).reshape(shape)
            for column, a in zip(columns, left, strict=True)
        ]

    def _partial(self, op: tgpu.PartialReduceOp, arrays: list[Array]) -> list[Any]:
        """Reduce what each warp holds, and put it where its partial result belongs."""
        source = self.layouts.of(op.sources[0].type)
        partial = self.layouts.of(op.results_[0].type)
        found = [np.zeros(partial.shape, a.dtype) for a in arrays]
        for warp in range(source.warps):
            held = sorted(set(source.table[0, warp].ravel().tolist()))
            lines: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
            for index in map(source.unflatten, held):
                kept = (*index[: op.axis], *index[op.axis + 1 :])
                lines.setdefault(kept, []).append(index)
            places = {partial.unflatten(p) for p in partial.table[0, warp].ravel().tolist()}
            for place in places:
                first, *rest = lines[place[1:]]
                total = [a[first] for a in arrays]
                for index in rest:
                    total = self._call(op.combine, [*total, *(a[index] for a in arrays)])
                for array, value in zip(found, total, strict=True):
                    array[place] = value
        return found

    def _load(self, op: tile.LoadOp, operands: list[Any]) -> Any:
        pointers = np.asarray(operands[0])
        mask = np.broadcast_to(True if op.mask is None else self.values[op.mask], pointers.shape)
        result = np.zeros(pointers.shape, dtype_of(op.result.type))
        for at in zip(*np.nonzero(np.atleast_1d(mask)), strict=True):
            key = at if pointers.ndim else ()
            pointer = int(pointers[key])
            result[key] = self.memory[pointer >> 32][pointer & 0xFFFFFFFF]
        return result

    def _store(self, op: tile.StoreOp, operands: list[Any]) -> None:
        pointers = np.asarray(operands[0])
        mask = np.broadcast_to(True if op.mask is None else self.values[op.mask], pointers.shape)
        for at in zip(*np.nonzero(np.atleast_1d(mask)), strict=True):
            key = at if pointers.ndim else ()
            pointer = int(pointers[key])
            self.memory[pointer >> 32][pointer & 0xFFFFFFFF] = np.asarray(operands[1])[key]


def _multiply(a: Array, b: Array, acc: Array) -> Array:
    with np.errstate(all="ignore"):
        return acc + a.astype(acc.dtype) @ b.astype(acc.dtype)


def _constant(op: ir.Operation) -> Any:
    attribute: Any = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        attribute = attribute.get_splat_value()
    return np.full(shape_of(op.results[0].type), attribute.value)
