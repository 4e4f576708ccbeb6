"""Run kernels of the `machine` level, as made for NVIDIA, on NumPy arrays: the lowering's oracle.

All threads of a program go in lockstep: a scalar is an array of one value a thread, a vector one of
(thread, register). Where a condition differs between threads both sides run, each under a mask.
Memory is `thread_memory`'s, instructions on matrices and between lanes are `nvvm_intrinsics`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from mlir import ir

from tests.targets.gpu import nvvm_intrinsics
from tests.targets.gpu.thread_memory import Global, Shared, dtype_of
from tests.transforms.arith_evaluator import Array, evaluate


class Threads:
    """The threads of one program.

    Args:
        module: At the `machine` level, with `ptx` ops.
        memory: Global memory.
        program: The program's index.
        grid: Programs along each axis.
    """

    def __init__(
        self,
        module: ir.Module,
        memory: Global,
        program: Sequence[int] = (0, 0, 0),
        grid: Sequence[int] = (1, 1, 1),
    ) -> None:
        self.function: Any = next(
            op for op in module.body.operations if "tile.kinds" in op.operation.attributes
        )
        attributes = self.function.operation.attributes
        self.count: int = attributes["tile.threads"].value
        self.memory = memory
        self.shared = Shared(attributes["tile.shared_bytes"].value, self.count)
        self.program = program
        self.grid = grid
        self.values: dict[ir.Value, Any] = {}
        self.active = np.ones(self.count, np.bool_)
        self.copies: list[Callable[[], None]] = []
        self.groups: list[list[Callable[[], None]]] = []

    def run(self, *arguments: Any) -> None:
        """Run the kernel; arguments are numbers, or addresses."""
        block = self.function.operation.regions[0].blocks[0]
        for old, value in zip(block.arguments, arguments, strict=True):
            self.values[old] = np.full(self.count, value).astype(dtype_of(old.type))
        with np.errstate(all="ignore"):
            self.block(block)
        assert not self.copies, "copies without a commit"

    def block(self, block: ir.Block) -> list[Any]:
        """Run a block; return what its terminator hands on."""
        for op in block.operations:
            name = op.operation.name
            operands = [self.values[v] for v in op.operation.operands]
            if name in ("llvm.return", "scf.yield", "scf.condition"):
                return operands
            results = self.op(op, name, operands)
            for old, new in zip(op.operation.results, results, strict=True):
                self.values[old] = new
        return []

    def op(self, op: Any, name: str, operands: list[Any]) -> Sequence[Any]:
        """Run one op; return its results."""
        if name in _HANDLERS:
            made: Any = _HANDLERS[name](self, op, *operands)
            # Most ops have one result, some a list of them, some none.
            return [] if made is None else cast("Any", made if type(made) is list else [made])
        dialect = name.partition(".")[0]
        if dialect in ("arith", "math"):
            return [self._elementwise(op, name, operands)]
        raise AssertionError(f"no handler for {name}")

    def _elementwise(self, op: Any, name: str, operands: list[Array]) -> Any:
        if name == "arith.constant":
            return self._constant(op)
        if name == "arith.select":
            condition, yes, no = operands
            return (
                _merge(condition, yes, no) if condition.ndim < 2 else np.where(condition, yes, no)
            )
        return evaluate(op, operands)

    def _constant(self, op: Any) -> Array:
        type_ = op.result.type
        value = op.operation.attributes["value"]
        if isinstance(value, ir.DenseElementsAttr) and not value.is_splat:
            numbers: Any = value
            row = np.array([numbers[i] for i in range(len(numbers))], dtype_of(type_))
            return np.broadcast_to(row, (self.count, len(row)))
        one = evaluate(op, [])
        shape = (self.count, type_.shape[0]) if isinstance(type_, ir.VectorType) else (self.count,)
        return np.broadcast_to(one, shape)


# Vectors and addresses.


def _result_type(op: Any) -> Any:
    return op.operation.results[0].type


def _broadcast(t: Threads, op: Any, scalar: Array) -> Array:
    return np.broadcast_to(scalar[:, None], (t.count, _result_type(op).shape[0]))


def _shuffle(t: Threads, op: Any, a: Array, b: Array) -> Array:
    both = np.concatenate([a, b], axis=1)
    mask = [max(0, int(i)) for i in op.operation.attributes["mask"]]
    return both[:, mask]


def _extract(t: Threads, op: Any, source: Array) -> Array:
    (index,) = op.operation.attributes["static_position"]
    return source[:, index]


def _slice(t: Threads, op: Any, source: Array) -> Array:
    attributes = op.operation.attributes
    start, size = (int(attributes[n][0].value) for n in ("offsets", "sizes"))
    return source[:, start : start + size]


def _bitcast(t: Threads, op: Any, source: Array) -> Array:
    return np.ascontiguousarray(source).view(dtype_of(_result_type(op)))


def _gep(t: Threads, op: Any, base: Array, *indices: Array) -> Array:
    element = ir.TypeAttr(op.operation.attributes["elem_type"]).value
    size = dtype_of(element).itemsize
    (static,) = op.operation.attributes["rawConstantIndices"]
    index = indices[0].astype(np.int64) if indices else static
    if isinstance(index, np.ndarray) and index.ndim > base.ndim:
        base = base[:, None]
    return base + index * size


def _is_shared(value: ir.Value) -> bool:
    return "<3>" in str(value.type)


def _load(t: Threads, op: Any, address: Array) -> Array:
    type_ = _result_type(op)
    dtype = dtype_of(type_)
    count = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    if _is_shared(op.operation.operands[0]):
        found = t.shared.read(address, count * dtype.itemsize, t.active).view(dtype)
    else:
        found = t.memory.read(address, count, dtype, t.active)
    return found if isinstance(type_, ir.VectorType) else found[:, 0]


def _bytes(values: Array) -> Array:
    whole = np.ascontiguousarray(values)
    return whole.reshape(len(whole), -1).view(np.uint8)


def _store(t: Threads, op: Any, value: Array, address: Array) -> None:
    if _is_shared(op.operation.operands[1]):
        t.shared.write(address, _bytes(value), t.active)
    else:
        t.memory.write(address, value.reshape(t.count, -1), t.active)


def _from_elements(t: Threads, op: Any, *parts: Array) -> Array:
    return np.stack(parts, axis=1)


def _to_elements(t: Threads, op: Any, whole: Array) -> list[Array]:
    return [whole[:, i] for i in range(whole.shape[1])]


def _same_bits(t: Threads, op: Any, value: Array) -> Array:
    return value


def _zeros(t: Threads, op: Any) -> Array:
    type_ = _result_type(op)
    shape = (t.count, type_.shape[0]) if isinstance(type_, ir.VectorType) else (t.count,)
    return np.zeros(shape, np.int64)


def _extractvalue(t: Threads, op: Any, struct: nvvm_intrinsics.Struct) -> Any:
    return struct[op.operation.attributes["position"][0]]


def _nothing(t: Threads, op: Any, *_: Array) -> None:
    return None


# Control flow.


def _same(t: Threads, value: Array) -> int:
    held = value[t.active]
    assert len(held), "no thread is active"
    assert np.all(held == held[0]), "threads part at a loop"
    return int(held[0])


def _for(t: Threads, op: Any, low: Array, high: Array, step: Array, *carried: Any) -> list[Any]:
    block = op.operation.regions[0].blocks[0]
    counter, *names = block.arguments
    values = list(carried)
    for i in range(_same(t, low), _same(t, high), _same(t, step)):
        t.values[counter] = np.full(t.count, i).astype(low.dtype)
        t.values.update(zip(names, values, strict=True))
        values = t.block(block)
    return values


def _if(t: Threads, op: Any, condition: Array) -> list[Any]:
    outer = t.active
    sides: list[list[Any] | None] = []
    for region, mask in zip(op.operation.regions, (condition, ~condition), strict=True):
        t.active = outer & mask
        ran = bool(len(region.blocks)) and bool(t.active.any())
        sides.append(t.block(region.blocks[0]) if ran else None)
    t.active = outer
    first, second = sides
    if first is None or second is None:
        return (first if second is None else second) or []
    return [_merge(condition, a, b) for a, b in zip(first, second, strict=True)]


def _merge(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def _while(t: Threads, op: Any, *inits: Any) -> list[Any]:
    before, after = (region.blocks[0] for region in op.operation.regions)
    outer, values = t.active, list(inits)
    results: list[Any] | None = None
    while True:
        t.values.update(zip(before.arguments, values, strict=True))
        condition, *passed = t.block(before)
        results = (
            passed
            if results is None
            else [_merge(t.active, a, b) for a, b in zip(passed, results, strict=True)]
        )
        again = t.active & condition
        if not again.any():
            break
        t.active = again
        t.values.update(zip(after.arguments, passed, strict=True))
        following = t.block(after)
        values = [_merge(again, a, b) for a, b in zip(following, values, strict=True)]
    t.active = outer
    return results


# PTX.


def _guarded(t: Threads, op: Any) -> Array:
    return t.active if op.predicate is None else t.active & t.values[op.predicate]


def _ptx_load(t: Threads, op: Any, address: Array, *_: Array) -> Array:
    type_ = op.value.type
    active = _guarded(t, op)
    found = t.memory.read(address, type_.shape[0], dtype_of(type_), active)
    if op.other is None:
        return found
    return np.where(active[:, None], found, t.values[op.other])


def _ptx_store(t: Threads, op: Any, address: Array, value: Array, *_: Array) -> None:
    t.memory.write(address, value, _guarded(t, op))


def _unsigned(value: Any) -> Any:
    return value.view(f"u{value.dtype.itemsize}")


_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "fadd": lambda a, b: a + b,
    "max": max,
    "min": min,
    "umax": lambda a, b: a if _unsigned(a) > _unsigned(b) else b,
    "umin": lambda a, b: a if _unsigned(a) < _unsigned(b) else b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "xchg": lambda a, b: b,
}


def _each_thread(
    t: Threads, op: Any, address: Array, value: Array, update: Callable[[int, Any], Any]
) -> Array:
    """Update memory thread by thread; return the old values, 0 where a thread does not act."""
    old = np.zeros_like(value)
    active = _guarded(t, op)
    for thread in np.flatnonzero(active).tolist():
        alone = np.arange(t.count) == thread
        old[thread] = t.memory.read(address, 1, value.dtype, alone)[thread, 0]
        new = np.array(value)
        new[thread] = update(thread, old[thread])
        t.memory.write(address, new[:, None], alone)
    return old


def _ptx_atom(t: Threads, op: Any, address: Array, value: Array, *_: Array) -> Array:
    update = _UPDATES[op.kind]
    return _each_thread(t, op, address, value, lambda i, old: update(old, value[i]))


def _ptx_red(t: Threads, op: Any, address: Array, value: Array, *_: Array) -> None:
    _ptx_atom(t, op, address, value)


def _ptx_cas(t: Threads, op: Any, address: Array, compare: Array, value: Array, *_: Any) -> Array:
    return _each_thread(
        t, op, address, value, lambda i, old: value[i] if old == compare[i] else old
    )


_HANDLERS: dict[str, Callable[..., Any]] = {
    "vector.broadcast": _broadcast,
    "vector.shuffle": _shuffle,
    "vector.extract": _extract,
    "vector.extract_strided_slice": _slice,
    "vector.bitcast": _bitcast,
    "vector.from_elements": _from_elements,
    "vector.to_elements": _to_elements,
    "llvm.getelementptr": _gep,
    "llvm.load": _load,
    "llvm.store": _store,
    "llvm.ptrtoint": _same_bits,
    "llvm.inttoptr": _same_bits,
    "llvm.mlir.zero": _zeros,
    "llvm.mlir.addressof": _zeros,
    "llvm.extractvalue": _extractvalue,
    "llvm.intr.assume": _nothing,
    "llvm.call_intrinsic": nvvm_intrinsics.call,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "ptx.load": _ptx_load,
    "ptx.store": _ptx_store,
    "ptx.atom": _ptx_atom,
    "ptx.red": _ptx_red,
    "ptx.cas": _ptx_cas,
    "ptx.launch_dependents": lambda *_: None,
    "ptx.grid_wait": lambda *_: None,
}
