"""Run kernels of the `machine` level, as made for NVIDIA, on NumPy arrays: the lowering's oracle.

All threads of a program go in lockstep: a scalar is an array of one value a thread, a vector one of
(thread, register). Where a condition differs between threads both sides run, each under a mask.
Instructions on matrices and between lanes follow the PTX manual's own formulas, not our layouts.

Memory is bytes. Global memory refuses accesses outside of its arrays and misaligned ones. Shared
memory knows which thread touched each byte since the last barrier, and refuses what would be a race;
asynchronous copies arrive only when they are waited for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from mlir import ir

from tests.transforms.arith_evaluator import DTYPES, Array, cast, evaluate

_GLOBAL_BASE = 1 << 32
_GUARD = 256


def dtype_of(type_: ir.Type) -> np.dtype[Any]:
    """Return the NumPy type of a scalar or of a vector's elements."""
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    text = str(element)
    return np.dtype(np.int64) if text.startswith("!llvm.ptr") else DTYPES[text]


@dataclass
class Global:
    """Global memory: copies of arrays, far apart, at 256-byte boundaries."""

    data: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    valid: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    places: list[tuple[int, Array]] = field(default_factory=list[tuple[int, Array]])

    def add(self, array: Array) -> int:
        """Put an array in memory; return its address."""
        start = len(self.data) + _GUARD
        size = -(-array.nbytes // _GUARD) * _GUARD
        self.data = np.concatenate([self.data, np.zeros(_GUARD + size, np.uint8)])
        self.valid = np.concatenate([self.valid, np.zeros(_GUARD + size, np.bool_)])
        self.data[start : start + array.nbytes] = array.view(np.uint8).ravel()
        self.valid[start : start + array.nbytes] = True
        self.places.append((start, array))
        return _GLOBAL_BASE + start

    def copy_back(self) -> None:
        """Write memory back to the arrays."""
        for start, array in self.places:
            held = self.data[start : start + array.nbytes]
            array[...] = held.view(array.dtype).reshape(array.shape)

    def read(self, addresses: Array, count: int, dtype: np.dtype[Any], active: Array) -> Array:
        """Return `count` elements from each active thread's address; zeros elsewhere."""
        places = self._places(addresses, count * dtype.itemsize, active)
        found = self.data[np.where(active[:, None], places, 0)]
        found[~active] = 0
        return np.ascontiguousarray(found).view(dtype)

    def write(self, addresses: Array, values: Array, active: Array) -> None:
        """Write each active thread's vector, threads in order."""
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
        places = self._places(addresses, data.shape[1], active)
        self.data[places[active]] = data[active]

    def _places(self, addresses: Array, size: int, active: Array) -> Array:
        assert np.all(addresses[active] % size == 0), "misaligned access of global memory"
        places = (addresses - _GLOBAL_BASE)[:, None] + np.arange(size)
        inside = (places >= 0) & (places < len(self.data))
        assert np.all(inside[active]), "wild pointer"
        assert np.all(self.valid[places[active]]), "out of bounds"
        return places


@dataclass
class Shared:
    """Shared memory, and who touched each byte since the last barrier (-1: nobody, -2: several)."""

    size: int
    threads: int

    def __post_init__(self) -> None:
        self.data = np.full(self.size, 0xA5, np.uint8)
        self.written = np.zeros(self.size, np.bool_)
        self.barrier()

    def barrier(self, warps: bool = False) -> None:
        """Forget accesses: all of them, or those that only one warp made."""
        if warps:
            # What one warp touched, its own threads may now touch.
            self.writer = np.where(self.writer >= 0, -3 - self.writer // 32, self.writer)
            self.reader = np.where(self.reader >= 0, -3 - self.reader // 32, self.reader)
            return
        self.writer = np.full(self.size, -1)
        self.reader = np.full(self.size, -1)

    def _conflict(self, owner: Array, places: Array, thread: int) -> bool:
        held = owner[places]
        mine = (held == -1) | (held == thread) | (held == -3 - thread // 32)
        return not bool(np.all(mine))

    def read(self, addresses: Array, size: int, active: Array) -> Array:
        """Return `size` bytes from each active thread's address."""
        found = np.zeros((self.threads, size), np.uint8)
        for thread in np.flatnonzero(active):
            places = self._places(int(addresses[thread]), size)
            assert np.all(self.written[places]), "shared memory read before it was written"
            assert not self._conflict(self.writer, places, thread), "race: read of a fresh write"
            held = self.reader[places]
            self.reader[places] = np.where((held == -1) | (held == thread), thread, -2)
            found[thread] = self.data[places]
        return found

    def write(self, addresses: Array, data: Array, active: Array) -> None:
        """Write each active thread's bytes."""
        for thread in np.flatnonzero(active):
            places = self._places(int(addresses[thread]), data.shape[1])
            assert not self._conflict(self.writer, places, thread), "race: two writers"
            assert not self._conflict(self.reader, places, thread), "race: write under a reader"
            self.writer[places] = thread
            self.written[places] = True
            self.data[places] = data[thread]

    def _places(self, address: int, size: int) -> Array:
        assert address % size == 0, "misaligned access of shared memory"
        assert 0 <= address <= self.size - size, "shared memory out of bounds"
        return np.arange(address, address + size)


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
            made = _HANDLERS[name](self, op, *operands)
            return made if isinstance(made, list) else [made] if made is not None else []
        dialect = name.partition(".")[0]
        if dialect in ("arith", "math"):
            return [self._elementwise(op, name, operands)]
        raise AssertionError(f"no handler for {name}")

    def _elementwise(self, op: Any, name: str, operands: list[Any]) -> Any:
        if name == "arith.constant":
            return self._constant(op)
        if name == "arith.select":
            condition, yes, no = operands
            return np.where(condition[:, None] if condition.ndim < yes.ndim else condition, yes, no)
        return evaluate(op, operands)

    def _constant(self, op: Any) -> Array:
        type_ = op.result.type
        value = op.operation.attributes["value"]
        if isinstance(value, ir.DenseElementsAttr) and not value.is_splat:
            row = np.array([value[i] for i in range(len(value))], dtype_of(type_))
            return np.broadcast_to(row, (self.count, len(row)))
        one = evaluate(op, [])
        shape = (self.count, type_.shape[0]) if isinstance(type_, ir.VectorType) else (self.count,)
        return np.broadcast_to(one, shape)


# Vectors and addresses.


def _vector_type(op: Any) -> ir.VectorType:
    return op.operation.results[0].type


def _broadcast(t: Threads, op: Any, scalar: Array) -> Array:
    return np.broadcast_to(scalar[:, None], (t.count, _vector_type(op).shape[0]))


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
    return np.ascontiguousarray(source).view(dtype_of(_vector_type(op)))


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
    type_ = _vector_type(op)
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
    for thread in np.flatnonzero(active):
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


# Intrinsics.


def _intrinsic(t: Threads, op: Any, *arguments: Array) -> Any:
    name = ir.StringAttr(op.operation.attributes["intrin"]).value.removeprefix("llvm.nvvm.")
    for pattern, handler in _INTRINSICS:
        if found := re.fullmatch(pattern, name):
            return handler(t, op, found, *arguments)
    raise AssertionError(f"no intrinsic {name}")


def _special(t: Threads, op: Any, found: re.Match[str]) -> Array:
    register, axis = found[1], "xyz".index(found[2])
    if register == "tid":
        return np.arange(t.count, dtype=np.int32)
    number = t.program[axis] if register == "ctaid" else t.grid[axis]
    return np.full(t.count, number, np.int32)


def _lanes(t: Threads, values: Array, lane: Array) -> Array:
    """Return the value of the lane asked for, in each thread's own warp."""
    assert t.active.all(), "a shuffle needs all lanes"
    own = np.arange(t.count)
    return values[(own & ~31) | (lane & 31)]


def _shfl(t: Threads, op: Any, found: re.Match[str], mask: Array, value: Array, lane: Array,
          last: Array) -> Array:  # fmt: skip
    assert np.all(mask == -1)
    assert np.all(last == 31)
    asked = (np.arange(t.count) ^ lane) if found[1] == "bfly" else lane
    return _lanes(t, value, asked)


def _barrier(t: Threads, op: Any, found: re.Match[str], *_: Array) -> None:
    assert t.active.all(), "a barrier under a divergent condition"
    t.shared.barrier()


def _warp_barrier(t: Threads, op: Any, found: re.Match[str], *_: Array) -> None:
    t.shared.barrier(warps=True)


def _cp_async(
    t: Threads, op: Any, found: re.Match[str], to: Array, source: Array, *size: Array
) -> None:
    count = int(found[1])
    active = t.active
    reads = active & (size[0] == count) if size else active
    assert not size or np.all((size[0] == count) | (size[0] == 0))
    data = t.memory.read(source, count, np.dtype(np.uint8), reads)
    t.copies.append(lambda: t.shared.write(to, data, active))


def _commit(t: Threads, op: Any, found: re.Match[str]) -> None:
    t.groups.append(t.copies)
    t.copies = []


def _wait(t: Threads, op: Any, found: re.Match[str], pending: Array) -> None:
    while len(t.groups) > pending[0]:
        for copy in t.groups.pop(0):
            copy()


def _ldmatrix(t: Threads, op: Any, found: re.Match[str], address: Array) -> Any:
    """Matrix i: rows at the addresses of lanes 8 i to 8 i + 7; lane l gets row l / 4, pair l % 4."""
    count, turned = int(found[1]), found[2] is not None
    words: list[Array] = []
    lane = np.arange(t.count) & 31
    warp = np.arange(t.count) & ~31
    for i in range(count):
        rows = warp[:, None] + 8 * i + np.arange(8)
        firsts = np.zeros(t.count, np.bool_)
        firsts[rows.ravel()] = True
        data = t.shared.read(address, 16, firsts).view(np.uint16)
        matrix = data[rows]
        if turned:
            matrix = matrix.transpose(0, 2, 1)
        pair = matrix[np.arange(t.count), lane // 4].reshape(t.count, 4, 2)
        chosen = pair[np.arange(t.count), lane % 4]
        words.append(np.ascontiguousarray(chosen).view(np.int32)[:, 0])
    return words[0] if count == 1 else _Struct(words)


def _stmatrix(t: Threads, op: Any, found: re.Match[str], address: Array, *words: Array) -> None:
    turned = found[2] is not None
    for i, word in enumerate(words):
        pairs = np.ascontiguousarray(word[:, None]).view(np.uint16).reshape(-1, 8, 4, 2)
        matrix = pairs.reshape(-1, 8, 8)
        if turned:
            matrix = matrix.transpose(0, 2, 1)
        data = np.zeros((t.count, 8), np.uint16)
        rows = np.arange(t.count).reshape(-1, 32)[:, 8 * i : 8 * i + 8]
        data[rows] = matrix
        firsts = np.zeros(t.count, np.bool_)
        firsts[rows.ravel()] = True
        t.shared.write(address, _bytes(data), firsts)


class _Struct(tuple[Any, ...]):
    """What an intrinsic with several results returns."""

    def __new__(cls, parts: Sequence[Any]) -> _Struct:
        return super().__new__(cls, parts)


_MMA_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def _mma(t: Threads, op: Any, found: re.Match[str], *arguments: Array) -> Any:
    m, n, k = (int(found[i]) for i in (1, 2, 3))
    types = found[4].split(".")
    if types[0] == "f32":
        types = types[1:-1] or ["f16"]
    elif types == ["f16", "f16"]:
        types = ["f16"]
    left, right = _MMA_TYPES[types[0]], _MMA_TYPES[types[-1]]
    warps = t.count // 32
    per_word = max(1, 4 // left.itemsize)
    a_words, b_words = m * k // 32 // per_word, k * n // 32 // per_word
    a = _fragment(arguments[:a_words], left, warps)
    b = _fragment(arguments[a_words : a_words + b_words], right, warps)
    sums = arguments[a_words + b_words :]
    halves = sums[0].ndim == 2
    c = np.concatenate(sums, axis=1) if halves else np.stack(sums, axis=1)
    c = c.reshape(warps, 32, -1)
    lane = np.arange(32)
    group, place = lane // 4, lane % 4
    whole_a = np.zeros((warps, m, k))
    whole_b = np.zeros((warps, k, n))
    tall = 2 if m == 16 else 1
    for i in range(a.shape[2]):
        word, e = divmod(i, per_word)
        rows = group + 8 * (word % tall)
        whole_a[:, rows, per_word * place + e + 4 * per_word * (word // tall)] = a[:, :, i]
    for i in range(b.shape[2]):
        word, e = divmod(i, per_word)
        whole_b[:, per_word * place + e + 4 * per_word * word, group] = b[:, :, i]
    total = whole_a @ whole_b
    out = [
        c[:, :, i] + total[:, group + 8 * (i // 2), 2 * place + i % 2] for i in range(c.shape[2])
    ]
    parts = [part.astype(c.dtype).ravel() for part in out]
    if halves:
        parts = [np.stack(parts[i : i + 2], axis=1) for i in range(0, len(parts), 2)]
    return _Struct(parts)


def _fragment(words: Sequence[Array], dtype: np.dtype[Any], warps: int) -> Array:
    """Return a fragment's elements, (warp, lane, element)."""
    whole = np.stack([np.ascontiguousarray(w).reshape(len(w), -1) for w in words], axis=1)
    flat = np.ascontiguousarray(whole.reshape(len(words[0]), -1))
    return flat.view(dtype).astype(np.float64).reshape(warps, 32, -1)


def _tf32(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    return (x.view(np.int32) + 0x1000) & ~0x1FFF


def _to_fp8(t: Threads, op: Any, found: re.Match[str], *x: Array) -> Array:
    dtype = _MMA_TYPES[found[2]]
    parts = [x[0][:, 0], x[0][:, 1]] if found[1] == "f16x2" else [x[1], x[0]]
    codes = np.stack([cast(p, dtype) for p in parts], axis=1)
    return np.ascontiguousarray(codes).view(np.int16)[:, 0]


def _from_fp8(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    return x[:, None].view(_MMA_TYPES[found[1]]).astype(np.float16)


def _to_integer(t: Threads, op: Any, found: re.Match[str], x: Array) -> Array:
    signed = "u" not in found[0]
    to = np.dtype(np.int64 if found[0].count("l") == 2 else np.int32)
    made = cast(x, to, signed)
    if found[0] in ("f2i.rz", "f2ui.rz"):
        return made
    return np.where(np.isnan(x), np.array(-(2 ** (8 * to.itemsize - 1)), to), made)


def _function(name: str) -> Callable[..., Array]:
    table: dict[str, Callable[[Array], Any]] = {
        "ex2": np.exp2,
        "lg2": np.log2,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sin": np.sin,
        "cos": np.cos,
        "tanh": np.tanh,
    }
    return lambda t, op, found, x: np.asarray(table[name](x)).astype(x.dtype)


_INTRINSICS: list[tuple[str, Callable[..., Any]]] = [
    (r"read\.ptx\.sreg\.(tid|ctaid|nctaid)\.([xyz])", _special),
    (r"shfl\.sync\.(bfly|idx)\.i32", _shfl),
    (r"barrier\.cta\.sync\.aligned\.all", _barrier),
    (r"bar\.warp\.sync", _warp_barrier),
    (r"cp\.async\.c[ag]\.shared\.global\.(\d+)(?:\.s)?", _cp_async),
    (r"cp\.async\.commit\.group", _commit),
    (r"cp\.async\.wait\.group", _wait),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16", _ldmatrix),
    (r"stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16", _stmatrix),
    (r"mma\.m(\d+)n(\d+)k(\d+)\.row\.col\.(.*)", _mma),
    (r"f2tf32\.rna", _tf32),
    (r"(ff|f16x2)\.to\.(e4m3|e5m2)x2\.rn", _to_fp8),
    (r"(e4m3|e5m2)x2\.to\.f16x2\.rn", _from_fp8),
    (r"[fd]2u?(?:i|ll)\.rz", _to_integer),
    *(
        (rf"{name}\.approx(?:\.f)?", _function(name))
        for name in ("ex2", "lg2", "rsqrt", "sin", "cos", "tanh")
    ),
]

_HANDLERS: dict[str, Callable[..., Any]] = {
    "vector.broadcast": _broadcast,
    "vector.shuffle": _shuffle,
    "vector.extract": _extract,
    "vector.extract_strided_slice": _slice,
    "vector.bitcast": _bitcast,
    "vector.from_elements": lambda t, op, *parts: np.stack(parts, axis=1),
    "vector.to_elements": lambda t, op, whole: [whole[:, i] for i in range(whole.shape[1])],
    "llvm.getelementptr": _gep,
    "llvm.load": _load,
    "llvm.store": _store,
    "llvm.ptrtoint": lambda t, op, x: x,
    "llvm.inttoptr": lambda t, op, x: x,
    "llvm.mlir.zero": lambda t, op: np.zeros(
        (t.count, _vector_type(op).shape[0])
        if isinstance(_vector_type(op), ir.VectorType)
        else t.count,
        np.int64,
    ),
    "llvm.mlir.addressof": lambda t, op: np.zeros(t.count, np.int64),
    "llvm.extractvalue": lambda t, op, struct: struct[op.operation.attributes["position"][0]],
    "llvm.intr.assume": lambda t, op, condition: None,
    "llvm.call_intrinsic": _intrinsic,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "ptx.load": _ptx_load,
    "ptx.store": _ptx_store,
    "ptx.atom": _ptx_atom,
    "ptx.red": _ptx_red,
    "ptx.cas": _ptx_cas,
}
