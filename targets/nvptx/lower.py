"""NVIDIA's side of the shared lowering: `Machine` by NVVM intrinsics and the `ptx` dialect.

What LLVM has an intrinsic for is an `llvm.call_intrinsic`; accesses of global memory that need a
predicate, hints or PTX's memory orders are `ptx` ops, which `emit_asm` turns into inline assembly
last of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects import ptx, tgpu
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer, intrinsic, pointer_type
from tiledsl.targets.gpu.lowering import Lowering
from tiledsl.targets.gpu.machine import Address, Hints, Kernel
from tiledsl.targets.nvptx import arithmetic, boxes, casts, debug, mma, warpgroup
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.shared_access import NVIDIA, SharedMemory

SHARED_SYMBOL = "shared_memory"
_SHARED_ALIGNMENT = 1024
"""Bytes: what the widest swizzle that TMA and wgmma know asks for."""
_BARRIER_OF_SOME = 9
"""The barrier where those meet that hold tiles; 0 is that of all, 1 to 8 those of warpgroups."""
_ALL_LANES = -1
_LAST_LANE = 31
_MANY_SUMS = 192
"""Registers for sums, of the 255 a thread can have, with which ptxas need not try to fit two blocks
on a multiprocessor: it tries for minutes, and spills all the more."""


@dataclass(frozen=True)
class NvptxMachine:
    """One NVIDIA chip, as `targets/gpu` asks it for instructions.

    Attributes:
        chip: The chip.
        max_registers: A limit of registers a thread, or None.
        blocks: Blocks that run a program together, a cluster.
    """

    chip: Chip
    max_registers: int | None = None
    blocks: int = 1

    # Facts.

    @property
    def warp_size(self) -> int:
        """Threads of a warp."""
        return self.chip.warp_size

    @property
    def memory(self) -> SharedMemory:
        """The banks of its shared memory."""
        return NVIDIA

    @property
    def table(self) -> Table[Instruction]:
        """Its matrix instructions."""
        return cast("Table[Instruction]", mma.table(self.chip))

    @property
    def max_access_bytes(self) -> int:
        """The widest global access: 16 bytes, which is what layouts are chosen for."""
        return min(16, self.chip.max_access_bytes)

    def uniform(self, value: ir.Value) -> ir.Value:
        """Leave it: threads that LLVM thinks diverge here are met again by the hardware."""
        return value

    @property
    def extremes_at_once(self) -> int:
        """Two."""
        return 2

    def keeps_nan(self, element: ir.Type) -> bool:
        """Whether there is `max.NaN`: for all but f64."""
        return emit.width_of(element) <= 32

    @property
    def matrix_loads(self) -> bool:
        """Whether there is `ldmatrix`."""
        return self.chip.ldmatrix

    @property
    def matrix_stores(self) -> bool:
        """Whether there is `stmatrix`."""
        return self.chip.stmatrix

    @property
    def handlers(self) -> Mapping[str, Any]:
        """Products of warpgroups, copies of boxes, and what orders launches."""
        return {
            **warpgroup.HANDLERS,
            **boxes.HANDLERS,
            "tgpu.let_next_begin": _let_next_begin,
            "tgpu.await_launches": _await_launches,
        }

    # The kernel as a whole.

    def function_attributes(self, kernel: Kernel) -> dict[str, ir.Attribute]:
        """Return the kernel's calling convention and its numbers of threads and registers."""
        threads = kernel.threads + kernel.more_threads
        found: dict[str, ir.Attribute] = {
            "CConv": ir.Attribute.parse("#llvm.cconv<ptx_kernelcc>"),
            "nvvm.kernel": ir.UnitAttr.get(),
            "nvvm.reqntid": ir.DenseI32ArrayAttr.get([threads]),
        }
        # Where roles share registers out, ptxas must know how many there are to begin with.
        shares = kernel.more_threads > self.warp_size
        if kernel.sums > _MANY_SUMS or shares:
            found["nvvm.minctasm"] = ir.IntegerAttr.get(integer(32), 1)
        if self.blocks > 1:
            found["nvvm.cluster_dim"] = ir.DenseI32ArrayAttr.get([self.blocks, 1, 1])
        if self.max_registers is not None:
            # ptxas takes a limit at its word, where it would see by itself what all threads need.
            limit = min(self.max_registers, self.chip.most_registers(threads))
            found["nvvm.maxnreg"] = ir.IntegerAttr.get(integer(32), limit)
        return found

    def declare(self, kernel: Kernel) -> None:
        """Declare the dynamic shared memory, once a module."""
        if not kernel.shared_bytes or debug.has_symbol(SHARED_SYMBOL):
            return
        llvm.mlir_global(
            ir.TypeAttr.get(ir.Type.parse("!llvm.array<0 x i8>")),
            SHARED_SYMBOL,
            ir.Attribute.parse("#llvm.linkage<external>"),
            addr_space=3,
            alignment=_SHARED_ALIGNMENT,
        )

    def shared_base(self) -> ir.Value:
        """Return the start of the dynamic shared memory."""
        return llvm.mlir_addressof(pointer_type(3), SHARED_SYMBOL)

    # Where a thread is.

    def thread_id(self, threads: int | None = None) -> ir.Value:
        """Return %tid.x."""
        if threads is None:
            return _special_register("tid.x")
        known = ir.Attribute.parse(f"[{{llvm.range = {emit.range_below(threads)}}}]")
        return _special_register("tid.x", res_attrs=known)

    def program_id(self, axis: int) -> ir.Value:
        """Return %ctaid, or along x, where a cluster runs a program, the cluster's."""
        if self.blocks > 1 and axis == 0:
            return _special_register("clusterid.x")
        return _special_register(f"ctaid.{'xyz'[axis]}")

    def num_programs(self, axis: int) -> ir.Value:
        """Return %nctaid, or along x, where a cluster runs a program, that of clusters."""
        if self.blocks > 1 and axis == 0:
            return _special_register("nclusterid.x")
        return _special_register(f"nctaid.{'xyz'[axis]}")

    # Threads together.

    def barrier(
        self, memory: str, *, proxy: bool, threads: int | None = None, cluster: bool = False
    ) -> None:
        """`bar.sync` orders all memory among the block's threads, whatever is asked."""
        del memory
        if proxy:
            ptx.ProxyFenceOp.build()
        if cluster:
            intrinsic("llvm.nvvm.barrier.cluster.arrive.aligned", [])
            intrinsic("llvm.nvvm.barrier.cluster.wait.aligned", [])
        elif threads is None:
            intrinsic("llvm.nvvm.barrier.cta.sync.aligned.all", [i32(0)])
        else:
            arguments = [i32(_BARRIER_OF_SOME), i32(threads)]
            intrinsic("llvm.nvvm.barrier.cta.sync.aligned.count", arguments)

    def in_place(self) -> AbstractContextManager[None]:
        """Leave it to ptxas."""
        return nullcontext()

    def warp_barrier(self) -> None:
        """`bar.warp.sync`."""
        intrinsic("llvm.nvvm.bar.warp.sync", [i32(_ALL_LANES)])

    def shuffle_xor(self, word: ir.Value, mask: int) -> ir.Value:
        """`shfl.sync.bfly`."""
        arguments = [i32(_ALL_LANES), word, i32(mask), i32(_LAST_LANE)]
        return intrinsic("llvm.nvvm.shfl.sync.bfly.i32", arguments, integer(32))

    @property
    def orders_products(self) -> bool:
        """Yes: ptxas does."""
        return True

    @property
    def permutes_bytes(self) -> bool:
        """No: selects of halves become `prmt` in ptxas."""
        return False

    def permute_bytes(
        self,
        first: ir.Value,
        second: ir.Value,
        order: Sequence[int],
        *,
        where: ir.Value | None = None,
        otherwise: Sequence[int] = (),
    ) -> ir.Value:
        """Refuse: `permutes_bytes` is false."""
        raise CompilerBug("expected no permutation of bytes asked for")

    def shuffle_index(self, word: ir.Value, lane: ir.Value) -> ir.Value:
        """`shfl.sync.idx`."""
        arguments = [i32(_ALL_LANES), word, lane, i32(_LAST_LANE)]
        return intrinsic("llvm.nvvm.shfl.sync.idx.i32", arguments, integer(32))

    # Global memory.

    def load(
        self,
        type_: ir.Type,
        address: Address,
        alignment: int,
        hints: Hints,
        predicate: ir.Value | None,
        other: ir.Value | None,
    ) -> ir.Value:
        """LLVM's load where it will do, else `ptx.load`."""
        pointer = address.pointer()
        if predicate is None and not (hints.cache or hints.eviction):
            return llvm.load(type_, pointer, alignment=alignment, volatile_=hints.volatile or None)
        if predicate is not None and other is None:
            other = emit.zero(type_)
        return ptx.LoadOp.build(
            pointer,
            predicate,
            other,
            results=[type_],
            cache=hints.cache or None,
            eviction=hints.eviction or None,
            volatile=hints.volatile or None,
        ).value

    def store(
        self,
        value: ir.Value,
        address: Address,
        alignment: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """LLVM's store where it will do, else `ptx.store`."""
        pointer = address.pointer()
        if predicate is None and not (hints.cache or hints.eviction):
            llvm.store(value, pointer, alignment=alignment)
            return
        ptx.StoreOp.build(
            pointer,
            value,
            predicate,
            cache=hints.cache or None,
            eviction=hints.eviction or None,
        )

    def has_atomic(self, kind: str, element: ir.Type) -> bool:
        """Integers of 32 and 64 bits; additions of f16, f32, f64, from sm_90 on of bf16."""
        if kind == "fadd":
            floats = ("f16", "f32", "f64", *(("bf16",) if self.chip.number >= 90 else ()))
            return str(element) in floats
        return isinstance(element, ir.IntegerType) and element.width in (32, 64)

    def atomic_rmw(
        self,
        kind: str,
        address: Address,
        value: ir.Value,
        sem: str,
        scope: str,
        predicate: ir.Value | None,
        *,
        used: bool,
    ) -> ir.Value:
        """`atom`, or `red` where it can do."""
        pointer = address.pointer()
        if not used and sem in ("relaxed", "release") and kind != "xchg":
            ptx.RedOp.build(pointer, value, predicate, kind=kind, sem=sem, scope=scope)
            return emit.zero(value.type)
        return ptx.AtomOp.build(
            pointer, value, predicate, results=[value.type], kind=kind, sem=sem, scope=scope
        ).old

    def atomic_cas(
        self,
        address: Address,
        compare: ir.Value,
        value: ir.Value,
        sem: str,
        scope: str,
        predicate: ir.Value | None,
    ) -> ir.Value:
        """`atom.cas`."""
        return ptx.CasOp.build(
            address.pointer(),
            compare,
            value,
            predicate,
            results=[value.type],
            sem=sem,
            scope=scope,
        ).old

    # Asynchronous copies.

    def async_copy(
        self,
        shared: ir.Value,
        address: Address,
        size: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """`cp.async`: past L1 where all 16 bytes come at once, unless `ca` is asked for."""
        level = "cg" if size == 16 and hints.cache != "ca" else "ca"
        name = f"llvm.nvvm.cp.async.{level}.shared.global.{size}"
        arguments = [shared, address.pointer()]
        if predicate is not None:
            # Bytes that the source does not give are zeros, and then it is not read at all.
            name += ".s"
            arguments.append(emit.select(predicate, i32(size), i32(0)))
        intrinsic(name, arguments)

    def async_commit(self) -> None:
        """`cp.async.commit_group`."""
        intrinsic("llvm.nvvm.cp.async.commit.group", [])

    def async_wait(self, pending: int) -> None:
        """`cp.async.wait_group`."""
        intrinsic("llvm.nvvm.cp.async.wait.group", [i32(pending)])

    # Matrices.

    def load_matrices(self, shared: ir.Value, count: int, transposed: bool) -> list[ir.Value]:
        """`ldmatrix`."""
        turn = ".trans" if transposed else ""
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{turn}.b16"
        return mma.call(name, [shared], integer(32), count)

    def store_matrices(self, shared: ir.Value, words: Sequence[ir.Value], transposed: bool) -> None:
        """`stmatrix`."""
        turn = ".trans" if transposed else ""
        intrinsic(f"llvm.nvvm.stmatrix.sync.aligned.m8n8.x{len(words)}{turn}.b16", [shared, *words])

    def mma_fragment(self, instruction: Instruction, value: ir.Value) -> list[ir.Value]:
        """Return the registers that the instruction names."""
        return mma.registers(cast("mma.MmaSync", instruction), value)

    def mma(
        self,
        instruction: Instruction,
        a: list[ir.Value],
        b: list[ir.Value],
        acc: list[ir.Value],
        unsigned: tuple[bool, bool],
    ) -> list[ir.Value]:
        """`mma.sync`."""
        return mma.multiply(cast("mma.MmaSync", instruction), a, b, acc, unsigned)

    def mma_result(self, instruction: Instruction, sums: Sequence[list[ir.Value]]) -> ir.Value:
        """Return all registers of all accumulators."""
        del instruction
        return mma.together([register for one in sums for register in one])

    # Arithmetic.

    def cast(self, value: ir.Value, source: ir.Type, result: ir.Type, signed: bool) -> ir.Value:
        """See `casts`."""
        return casts.cast(self.chip, value, source, result, signed)

    def native(self, op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
        """See `arithmetic`."""
        return arithmetic.native(self.chip, op, operands)

    # Debugging.

    def print_line(self, format: str, arguments: Sequence[ir.Value]) -> None:
        """`vprintf`, which the driver provides."""
        debug.print_line(format, arguments)

    def stop(self, message: str) -> None:
        """Print the message and `trap`."""
        debug.stop(message)


def _let_next_begin(lowering: Lowering, op: tgpu.LetNextBeginOp) -> None:
    del lowering, op
    ptx.LaunchDependentsOp.build()


def _await_launches(lowering: Lowering, op: tgpu.AwaitLaunchesOp) -> None:
    del lowering, op
    ptx.GridWaitOp.build()


def _special_register(name: str, **options: Any) -> ir.Value:
    return intrinsic(f"llvm.nvvm.read.ptx.sreg.{name}", [], integer(32), **options)
