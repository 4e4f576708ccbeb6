"""Run kernels of the `machine` level, as made for AMD, on NumPy arrays.

The rest is `thread_interpreter`'s, which see. What is AMD's here follows the instruction set manuals
and AMD's matrix instruction calculator by formulas of its own, not our layouts: which lane a DPP
control, a swizzle or a permute reads, and which element of a matrix each lane and register holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import ml_dtypes
import numpy as np
from mlir import ir

from tests.targets.gpu.thread_interpreter import Global, Threads, dtype_of
from tests.transforms.arith_evaluator import Array
from tests.transforms.arith_evaluator import cast as convert
from tiledsl.dialects.context import context
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.lower_memory import ZEROS
from tiledsl.targets.amdgpu.pipeline import machine_passes, tgpu_passes, tile_passes
from tiledsl.targets.target import Options
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.run import run as run_passes


def set_options(module: ir.Module, options: Options) -> None:
    """Write options onto the kernel, as the front end does."""
    i64 = ir.IntegerType.get_signless(64, context())
    for kernel in kernels(module):
        for name in ("num_warps", "num_stages"):
            value = ir.IntegerAttr.get(i64, getattr(options, name))
            kernel.operation.attributes[f"tile.{name}"] = value


def to_machine(module: ir.Module, chip: str, warps: int = 4, stages: int = 3) -> ir.Module:
    """Take a `tile` module to the `machine` level, in place."""
    options, found = Options(num_warps=warps, num_stages=stages), CHIPS[chip]
    set_options(module, options)
    *machine, _ = machine_passes(found, options)
    run_passes(module, [*tile_passes(found, options), *tgpu_passes(found, options), *machine])
    return module


def run(
    module: ir.Module, chip: str, *arguments: Any, grid: tuple[int, int, int] = (1, 1, 1)
) -> None:
    """Run a `machine` module over a grid; arrays are changed in place."""
    memory = Global()
    given = [memory.add(cast("Array", a)) if isinstance(a, np.ndarray) else a for a in arguments]
    zeros = memory.add(np.zeros(16, np.uint8))
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                Waves(module, memory, chip, zeros, (x, y, z), grid).run(*given)
    memory.copy_back()


class Waves(Threads):
    """The waves of one workgroup."""

    def __init__(
        self,
        module: ir.Module,
        memory: Global,
        chip: str,
        zeros: int,
        program: Sequence[int],
        grid: Sequence[int],
    ) -> None:
        super().__init__(module, memory, program, grid)
        self.chip = CHIPS[chip]
        self.zeros = zeros
        self.at: tuple[int, ...] = tuple(program)
        self.lane = np.arange(self.count) % self.chip.wave_size
        self.first_lane = np.arange(self.count) - self.lane

    def op(self, op: Any, name: str, operands: list[Any]) -> Sequence[Any]:
        """Run one op; return its results."""
        handler = _HANDLERS.get(name)
        if handler is None:
            return super().op(op, name, operands)
        made = handler(self, op, *operands)
        return [] if made is None else [made]

    def from_lane(self, values: Array, lane: Array) -> Array:
        """Return the value of another lane of each thread's wave."""
        assert self.active.all(), "words move between lanes under a condition"
        return values[self.first_lane + lane]


# Threads and lanes.


def _thread_id(t: Waves, op: Any) -> Array:
    return np.arange(t.count, dtype=np.int32)


def _group_id(axis: int) -> Callable[..., Array]:
    def read(t: Waves, op: Any) -> Array:
        return np.full(t.count, t.at[axis], np.int32)

    return read


def dpp_source(control: int, lane: Array) -> Array:
    """Return the lane that each lane reads from under a DPP control (CDNA3, RDNA3: "DPP_CTRL")."""
    within = lane % 16
    if control < 0x100:
        source = within & ~3 | control >> 2 * (within & 3) & 3
    elif control == 0x140:
        source = 15 - within
    elif control == 0x141:
        source = within & 8 | 7 - (within & 7)
    elif 0x121 <= control <= 0x12F:
        source = (within - (control - 0x120)) % 16
    else:
        assert 0x160 <= control <= 0x16F
        source = within ^ control - 0x160
    return lane - within + source


def _dpp(t: Waves, op: Any, old: Array, word: Array) -> Array:
    control = int(op.dppCtrl.value)
    assert control < 0x160 or t.chip.number > 0x1000
    assert control not in (0x140, 0x141, 0x128) or t.chip.number < 0x1000
    return t.from_lane(word, dpp_source(control, t.lane))


def _swizzle(t: Waves, op: Any, word: Array, offset: Array) -> Array:
    mode = int(offset[0])
    assert mode < 1 << 15, "the bit-mask mode"
    lane = (t.lane & mode & 31 | mode >> 5 & 31) ^ (mode >> 10 & 31)
    return t.from_lane(word, t.lane & ~31 | lane)


def _bpermute(t: Waves, op: Any, address: Array, word: Array) -> Array:
    assert np.all(address % 4 == 0)
    return t.from_lane(word, address // 4 % t.chip.wave_size)


def _permlanex16(t: Waves, op: Any, old: Array, word: Array, low: Array, high: Array) -> Array:
    selectors = int(low[0]) & 0xFFFFFFFF | (int(high[0]) & 0xFFFFFFFF) << 32
    within = np.array([selectors >> 4 * i & 15 for i in range(16)])[t.lane % 16]
    return t.from_lane(word, (t.lane & ~15 ^ 16) | within)


def _permute_bytes(
    t: Waves, op: Any, found: re.Match[str], upper: Array, lower: Array, order: Array
) -> Array:
    held = [word.astype("<i4").view(np.uint8).reshape(-1, 4) for word in (lower, upper)]
    chosen = order.astype("<i4").view(np.uint8).reshape(-1, 4)
    assert np.all(chosen < 8)
    made = np.take_along_axis(np.concatenate(held, axis=1), chosen.astype(int), axis=1)
    return np.ascontiguousarray(made).view("<i4")[:, 0]


def _swap_rows(rows: int) -> Callable[..., Any]:
    def swap(t: Waves, op: Any, found: Any, first: Array, second: Array, *_: Array) -> Any:
        odd = t.lane & rows != 0
        # The odd rows of the first register and the even rows of the second change places.
        given = t.from_lane(second, t.lane & ~rows)
        taken = t.from_lane(first, t.lane | rows)
        return (np.where(odd, given, first), np.where(odd, second, taken))

    return swap


def _barrier(t: Waves, op: Any) -> None:
    assert t.active.all(), "a barrier under a divergent condition"
    t.shared.barrier()


# Memory.


def _address_of(t: Waves, op: Any) -> Array:
    name = ir.FlatSymbolRefAttr(op.operation.attributes["global_name"]).value
    return np.full(t.count, t.zeros if name == ZEROS else 0, np.int64)


def _poison(t: Waves, op: Any) -> Array:
    return np.full(t.count, 0x5A5A5A5A, np.int64).astype(dtype_of(op.operation.results[0].type))


def _nothing(t: Waves, op: Any) -> None:
    """Do what a fence does for lanes in lockstep."""


def _waited(t: Waves, op: Any, *_: Any) -> None:
    """Do what a wait does for lanes in lockstep."""


def _assembly(t: Waves, op: Any, *operands: Array) -> Array | None:
    """Do what our pieces of assembly do, all of them empty: give back what they are given."""
    assert ir.StringAttr(op.operation.attributes["asm_string"]).value == ""
    return operands[0] if operands else None


def _packet(t: Waves, op: Any, found: re.Match[str]) -> Array:
    return np.zeros(t.count, np.int64)


def _load(t: Waves, op: Any, address: Array) -> Any:
    if "<4>" not in str(op.operation.operands[0].type):
        (found,) = Threads.op(t, op, "llvm.load", [address])
        return found
    axis = (int(address[0]) - 12) // 4  # of the dispatch packet
    return np.full(t.count, t.grid[axis] * (t.count if axis == 0 else 1), np.int32)


_UPDATES: dict[int, Callable[[Any, Any], Any]] = {
    0: lambda old, new: new,
    1: lambda old, new: old + new,
    3: lambda old, new: old & new,
    5: lambda old, new: old | new,
    6: lambda old, new: old ^ new,
    7: max,
    8: min,
    9: lambda old, new: old if _unsigned(old) > _unsigned(new) else new,
    10: lambda old, new: old if _unsigned(old) < _unsigned(new) else new,
    11: lambda old, new: old + new,
}
"""By the number of `llvm.AtomicBinOp`."""


def _unsigned(value: Any) -> Any:
    return value.view(f"u{value.dtype.itemsize}")


def _each(t: Waves, address: Array, value: Array, update: Callable[[int, Any], Any]) -> Array:
    """Update memory lane by lane; return the old values."""
    old = np.zeros_like(value)
    for thread in np.flatnonzero(t.active):
        alone = np.arange(t.count) == thread
        old[thread] = t.memory.read(address, 1, value.dtype, alone)[thread, 0]
        new = np.array(value)
        new[thread] = update(int(thread), old[thread])
        t.memory.write(address, new[:, None], alone)
    return old


def _atomic(t: Waves, op: Any, address: Array, value: Array) -> Array:
    update = _UPDATES[int(ir.IntegerAttr(op.operation.attributes["bin_op"]).value)]
    return _each(t, address, value, lambda i, old: update(old, value[i]))


def _cas(t: Waves, op: Any, address: Array, compare: Array, value: Array) -> Any:
    old = _each(t, address, value, lambda i, held: value[i] if held == compare[i] else held)
    return (old, np.zeros(t.count, np.bool_))


# Intrinsics.


def _intrinsic(t: Waves, op: Any, *arguments: Array) -> Any:
    name = ir.StringAttr(op.operation.attributes["intrin"]).value
    for pattern, handler in _INTRINSICS:
        if found := re.fullmatch(pattern, name):
            return handler(t, op, found, *arguments)
    raise AssertionError(f"no intrinsic {name}")


_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "xf32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
    "bf8": np.dtype(ml_dtypes.float8_e5m2),
}


def _operand(t: Waves, bits: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements that lanes pass, (wave, lane, element)."""
    whole = np.ascontiguousarray(bits).reshape(t.count, -1)
    held = whole.view(dtype).astype(np.int64 if dtype.kind in "iu" else np.float64)
    return held.reshape(-1, t.chip.wave_size, held.shape[1])


def _product(
    t: Waves, left: Array, right: Array, acc: Array, k: Array, rows: Array, columns: Array
) -> Array:
    """Multiply what lanes hold: element j of lane l is (l % size, k[l, j]) of a, and so of b."""
    waves, lanes, _ = left.shape
    size, depth = int(columns.max()) + 1, int(k.max()) + 1
    a = np.zeros((waves, size, depth), left.dtype)
    b = np.zeros((waves, depth, size), right.dtype)
    row = cast("Array", np.arange(lanes) % size)[:, None]
    a[:, row, k] = left
    b[:, k, row] = right
    assert np.array_equal(a[:, row, k], left), "lanes that should hold the same do not"
    sums = (a @ b)[:, rows, columns].reshape(acc.shape)
    return (acc + sums).astype(acc.dtype)


def _mfma(t: Waves, op: Any, found: re.Match[str], left: Array, right: Array, acc: Array,
          *zeros: Array) -> Array:  # fmt: skip
    assert t.chip.matrix == "mfma"
    assert not any(np.any(z) for z in zeros)
    size, depth = int(found[1]), int(found[2])
    kinds = [kind for kind in found[3].split(".") if kind != "1k"]
    lane = np.arange(64)[:, None]
    per_lane = size * depth // 64
    k = lane // size * per_lane + np.arange(per_lane)
    j = np.arange(size * size // 64)
    blocks = j // 4 * (256 // size) + lane // size * 4 + j % 4
    rows = lane // 16 + 4 * j if kinds == ["f64"] else blocks
    a, b = _operand(t, left, _TYPES[kinds[0]]), _operand(t, right, _TYPES[kinds[-1]])
    return _product(t, a, b, acc, k, rows, lane % size + 0 * j)


def _wmma(t: Waves, op: Any, found: re.Match[str], *arguments: Array) -> Array:
    assert t.chip.matrix == "wmma"
    kinds = found[1].split(".")
    if kinds == ["iu8"]:
        a_signed, left, b_signed, right, acc, clamp = arguments
        assert not clamp.any()
        types = [np.dtype(np.int8 if s[0] else np.uint8) for s in (a_signed, b_signed)]
    else:
        left, right, acc = arguments
        types = [_TYPES[kinds[0]], _TYPES[kinds[-1]]]
    lane, j = np.arange(32)[:, None], np.arange(8)
    if t.chip.number < 0x1200:
        k, rows = np.arange(16) + 0 * lane, 2 * j + lane // 16
    else:
        k, rows = lane // 16 * 8 + np.arange(8), lane // 16 * 8 + j
    a, b = (_operand(t, x, d) for x, d in zip((left, right), types, strict=True))
    return _product(t, a, b, acc, k, rows, lane % 16 + 0 * j)


def _saturated(t: Waves, op: Any, found: re.Match[str], x: Array) -> Array:
    return convert(x, dtype_of(op.operation.results[0].type), found[1] == "s")


def _rsq(t: Waves, op: Any, found: re.Match[str], x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x)).astype(x.dtype)


def _exp2(t: Waves, op: Any, found: re.Match[str], x: Array) -> Array:
    return np.exp2(x)


def _log2(t: Waves, op: Any, found: re.Match[str], x: Array) -> Array:
    return np.log2(x)


def _from_fp8(t: Waves, op: Any, word: Array) -> Array:
    assert t.chip.fp8 == "ocp"
    dtype = _TYPES["fp8" if "fp8" in op.operation.name else "bf8"]
    upper = bool(op.wordSel.value)
    held = np.ascontiguousarray(word)[:, None].view(dtype)
    return held[:, 2 * upper : 2 * upper + 2].astype(np.float32)


def _to_fp8(t: Waves, op: Any, a: Array, b: Array, old: Array) -> Array:
    assert t.chip.fp8 == "ocp"
    dtype = _TYPES["fp8" if "fp8" in op.operation.name else "bf8"]
    upper = bool(op.wordSel.value)
    made = np.array(old)[:, None].view(np.uint8).copy()
    with np.errstate(all="ignore"):
        made[:, 2 * upper] = a.astype(dtype).view(np.uint8)
        made[:, 2 * upper + 1] = b.astype(dtype).view(np.uint8)
    return made.view(np.int32)[:, 0]


def _first_lane(t: Waves, op: Any, found: re.Match[str], x: Array) -> Array:
    held = x[t.active]
    assert (held == held[:1]).all(), "threads that should go one way hold different values"
    return x


def _pass(t: Waves, op: Any, found: re.Match[str], mask: Array) -> None:
    assert np.all(mask == 0x7FF), "some instructions may not pass"


_INTRINSICS: list[tuple[str, Callable[..., Any]]] = [
    (r"llvm\.fpto([su])i\.sat", _saturated),
    (r"llvm\.amdgcn\.dispatch\.ptr", _packet),
    (r"llvm\.amdgcn\.s\.wait(cnt|\.dscnt)", _waited),
    (r"llvm\.amdgcn\.perm", _permute_bytes),
    (r"llvm\.amdgcn\.permlane16\.swap", _swap_rows(16)),
    (r"llvm\.amdgcn\.permlane32\.swap", _swap_rows(32)),
    (r"llvm\.amdgcn\.readfirstlane", _first_lane),
    (r"llvm\.amdgcn\.sched\.barrier", _pass),
    (r"llvm\.amdgcn\.rsq", _rsq),
    (r"llvm\.amdgcn\.exp2", _exp2),
    (r"llvm\.amdgcn\.log", _log2),
    (r"llvm\.amdgcn\.mfma\.\w+\.(\d+)x\d+x(\d+)\.?([a-z].*)", _mfma),
    (r"llvm\.amdgcn\.wmma\.\w+\.16x16x16\.(.*)\.v8\w\d\d\.v.*", _wmma),
]

_HANDLERS: dict[str, Callable[..., Any]] = {
    "rocdl.workitem.id.x": _thread_id,
    "rocdl.workgroup.id.x": _group_id(0),
    "rocdl.workgroup.id.y": _group_id(1),
    "rocdl.workgroup.id.z": _group_id(2),
    "rocdl.update.dpp": _dpp,
    "rocdl.ds_swizzle": _swizzle,
    "rocdl.ds_bpermute": _bpermute,
    "rocdl.permlanex16": _permlanex16,
    "rocdl.s.barrier": _barrier,
    "rocdl.cvt.pk.f32.fp8": _from_fp8,
    "rocdl.cvt.pk.f32.bf8": _from_fp8,
    "rocdl.cvt.pk.fp8.f32": _to_fp8,
    "rocdl.cvt.pk.bf8.f32": _to_fp8,
    "llvm.fence": _nothing,
    "llvm.inline_asm": _assembly,
    "llvm.mlir.poison": _poison,
    "llvm.mlir.addressof": _address_of,
    "llvm.load": _load,
    "llvm.atomicrmw": _atomic,
    "llvm.cmpxchg": _cas,
    "llvm.call_intrinsic": _intrinsic,
}
