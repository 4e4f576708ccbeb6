"""What AMD GPUs answer to the shared lowering: `AmdMachine` is its `Machine`.

Decisions that the rest of the target relies on:

- A kernel has no hidden arguments: its bytes are its declared arguments' and nothing more. The
  grid's size comes from the dispatch packet, which every AQL launch has and which costs a kernel
  nothing that does not ask (two SGPRs otherwise); hidden arguments would add 256 bytes to every
  launch, and trailing ones of our own a case to every driver. The packet counts threads, so axis x
  is divided by the workgroup's size, a power of two.
- Shared memory is one LDS global of fixed size, so that LLVM knows how many workgroups fit when it
  gives out registers, and a launch asks for no dynamic memory.
- A workgroup is a line of threads and says so (`reqd_work_group_size`): LLVM then knows that the
  number of the wave is the same in all its lanes, and keeps what follows from it in SGPRs.
- Barriers order LDS accesses alone unless global memory is meant too; a plain fence would wait for
  outstanding global loads, which are what a pipelined loop keeps in flight. Each waits for the
  wave's own LDS accesses by an instruction besides.

Sources: LLVM's AMDGPUUsage ("Kernel Dispatch", "Memory Model"); LLVM's "Memory Model Relaxation
Annotations"; HSA runtime specification, "AQL kernel dispatch packet".
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mlir import ir
from mlir.dialects import arith, llvm, rocdl

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.dialects.types import element_of
from tiledsl.targets.amdgpu import (
    assertions,
    lower_cast,
    lower_lanes,
    lower_math,
    lower_memory,
    mma,
)
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.mma import MatrixInstruction
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Address, Hints, Kernel
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.shared_access import CDNA3, CDNA4, RDNA, SharedMemory

SHARED = "tiledsl.shared"
"""The LDS global."""

_LDS: dict[int, SharedMemory] = {0x90A: CDNA3, 0x942: CDNA3, 0x950: CDNA4}
"""Banks by chip; RDNA's otherwise."""
_LOCAL_ONLY = '#llvm.mmra_tag<"amdgpu-synchronize-as":"local">'
_PACKET_GRID = 12
"""Byte offset of grid_size_x in a dispatch packet; y and z follow, 4 bytes each."""
_AXES = "xyz"
_NOTHING = 0
"""A mask of the kinds of instructions that may cross a `sched.barrier`."""
_LDS_COUNT_GFX9, _LDS_COUNT_GFX11 = 0xC07F, 0xFC07
"""Operands of s_waitcnt: lgkmcnt(0), the other counters at their highest."""


class AmdMachine:
    """One chip; see `tiledsl.targets.gpu.machine.Machine` for what each method promises.

    Args:
        chip: The chip.
        num_warps: Waves of a program.
    """

    extremes_at_once = 3
    permutes_bytes = True
    orders_products = False
    matrix_loads = False
    matrix_stores = False
    max_access_bytes = Chip.max_access_bytes

    def __init__(self, chip: Chip, num_warps: int) -> None:
        self.chip = chip
        self.threads = num_warps * chip.wave_size

    def uniform(self, value: ir.Value) -> ir.Value:
        """Read it from the first lane.

        A branch on what came through LDS or from an atomic would else count as one that lanes take
        apart: LLVM then runs some lanes through a barrier, and what it orders, before the others.
        """
        if emit.width_of(value.type) >= 32:
            return emit.intrinsic("llvm.amdgcn.readfirstlane", [value], value.type)
        type_ = emit.integer(32)
        word = emit.intrinsic("llvm.amdgcn.readfirstlane", [arith.extui(type_, value)], type_)
        return arith.trunci(value.type, word)

    def keeps_nan(self, element: ir.Type) -> bool:
        """Whether there is `v_maximum`."""
        return emit.width_of(element) in self.chip.maximum_bits

    @property
    def warp_size(self) -> int:
        """Lanes of a wave."""
        return self.chip.wave_size

    @property
    def memory(self) -> SharedMemory:
        """The banks of LDS."""
        return shared_memory(self.chip)

    @property
    def table(self) -> Table[Instruction]:
        """The chip's matrix instructions."""
        return mma.table(self.chip)

    # The kernel as a whole.

    def function_attributes(self, kernel: Kernel) -> dict[str, ir.Attribute]:
        """Say that it is a kernel, and of how many threads its workgroups are."""
        threads = kernel.threads
        passthrough = (
            f'[["amdgpu-flat-work-group-size", "{threads},{threads}"],'
            ' ["uniform-work-group-size", "true"]]'
        )
        return {
            "rocdl.kernel": ir.UnitAttr.get(),
            "rocdl.reqd_work_group_size": ir.DenseI32ArrayAttr.get([threads, 1, 1]),
            "passthrough": ir.Attribute.parse(passthrough),
        }

    def declare(self, kernel: Kernel) -> None:
        """Build the globals: shared memory, and what masked-off lanes read."""
        lower_memory.declare_zeros()
        if kernel.shared_bytes:
            llvm.mlir_global(
                ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{kernel.shared_bytes} x i8>")),
                SHARED,
                ir.Attribute.parse("#llvm.linkage<external>"),
                alignment=lower_memory.ZEROS_BYTES,
                addr_space=3,
            )

    def shared_base(self) -> ir.Value:
        """Return the address of the LDS global."""
        return llvm.mlir_addressof(emit.pointer_type(3), SHARED)

    # Where a thread is.

    def thread_id(self, threads: int | None = None) -> ir.Value:
        """Return the work-item's number."""
        known = None if threads is None else emit.range_below(threads)
        return rocdl.workitem_id_x(emit.integer(32), range=known)

    def program_id(self, axis: int) -> ir.Value:
        """Return the workgroup's number along an axis."""
        read = (rocdl.workgroup_id_x, rocdl.workgroup_id_y, rocdl.workgroup_id_z)[axis]
        return read(emit.integer(32))

    def num_programs(self, axis: int) -> ir.Value:
        """Return the grid's size along an axis, from the dispatch packet."""
        packet = emit.intrinsic("llvm.amdgcn.dispatch.ptr", [], emit.pointer_type(4))
        field = emit.gep(packet, _PACKET_GRID + 4 * axis, emit.integer(8))
        count = llvm.load(emit.integer(32), field, alignment=4, invariant=True)
        if axis > 0:
            return count
        return arith.shrui(count, emit.i32(self.threads.bit_length() - 1))

    # Threads together.

    @property
    def handlers(self) -> Mapping[str, Any]:
        """None: every op is lowered as on other GPUs."""
        return {}

    def barrier(
        self, memory: str, *, proxy: bool, threads: int | None = None, cluster: bool = False
    ) -> None:
        """Meet; LDS accesses become visible, global ones too if `memory` is "all"."""
        # Nothing reads LDS by itself, all threads hold tiles, and one block runs a program.
        del proxy, threads, cluster
        _fence("release", "workgroup", memory)
        _wait_for_lds(self.chip)
        _pin_loads()
        rocdl.s_barrier()
        _fence("acquire", "workgroup", memory)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Let nothing come from behind to before, nor LDS accesses that follow before the loads.

        LLVM's scheduler would compute addresses, two registers each, as early as it can.
        """
        emit.intrinsic("llvm.amdgcn.sched.barrier", [emit.i32(_NOTHING)])
        yield
        _pin_loads()

    def warp_barrier(self) -> None:
        """Keep the order of LDS accesses: a wave's lanes run together and LDS serves in order."""
        _fence("release", "wavefront", "shared")
        emit.intrinsic("llvm.amdgcn.wave.barrier", [])
        _fence("acquire", "wavefront", "shared")

    def shuffle_xor(self, word: ir.Value, mask: int) -> ir.Value:
        """Return the word of the lane whose number differs in the bits of `mask`."""
        return lower_lanes.shuffle_xor(self.chip, self.thread_id(), word, mask)

    def permute_bytes(
        self,
        first: ir.Value,
        second: ir.Value,
        order: Sequence[int],
        *,
        where: ir.Value | None = None,
        otherwise: Sequence[int] = (),
    ) -> ir.Value:
        """Return four bytes of two words, by `v_perm_b32`, whose selector is a register."""
        return lower_lanes.permute_bytes(first, second, order, where, otherwise)

    def shuffle_index(self, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the word of the lane numbered `lane`."""
        return lower_lanes.shuffle_index(word, lane)

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
        """Read a vector without a branch."""
        return lower_memory.load(type_, address, alignment, hints, predicate, other)

    def store(
        self,
        value: ir.Value,
        address: Address,
        alignment: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """Write a vector."""
        lower_memory.store(value, address, alignment, hints, predicate)

    def has_atomic(self, kind: str, element: ir.Type) -> bool:
        """Whether LLVM has the atomic operation."""
        return lower_memory.has_atomic(kind, element)

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
        """Update one element atomically."""
        return lower_memory.atomic_rmw(kind, address, value, sem, scope, predicate, used=used)

    def atomic_cas(
        self,
        address: Address,
        compare: ir.Value,
        value: ir.Value,
        sem: str,
        scope: str,
        predicate: ir.Value | None,
    ) -> ir.Value:
        """Compare and swap."""
        return lower_memory.atomic_cas(address, compare, value, sem, scope, predicate)

    # What the AMD pipeline never asks for.

    def async_copy(
        self,
        shared: ir.Value,
        address: Address,
        size: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """Refuse: the AMD pipeline copies through registers."""
        raise _not_here("async_copy")

    def async_commit(self) -> None:
        """Refuse, as `async_copy`."""
        raise _not_here("async_commit")

    def async_wait(self, pending: int) -> None:
        """Refuse, as `async_copy`."""
        raise _not_here("async_wait")

    def load_matrices(self, shared: ir.Value, count: int, transposed: bool) -> list[ir.Value]:
        """Refuse: `matrix_loads` is false."""
        raise _not_here("load_matrices")

    def store_matrices(self, shared: ir.Value, words: Sequence[ir.Value], transposed: bool) -> None:
        """Refuse: `matrix_stores` is false."""
        raise _not_here("store_matrices")

    # Matrices and arithmetic.

    def mma_fragment(self, instruction: Instruction, value: ir.Value) -> ir.Value:
        """Return the vector itself."""
        del instruction
        return value

    def mma_result(self, instruction: Instruction, sums: Sequence[ir.Value]) -> ir.Value:
        """Return accumulators one after another."""
        del instruction
        return emit.concatenate(sums)

    def mma(
        self,
        instruction: Instruction,
        a: ir.Value,
        b: ir.Value,
        acc: ir.Value,
        unsigned: tuple[bool, bool],
    ) -> ir.Value:
        """Return acc + a @ b of one matrix instruction."""
        assert isinstance(instruction, MatrixInstruction)
        carrier = ir.Type.parse(instruction.carrier)
        left, right = _carried(a, carrier), _carried(b, carrier)
        arguments = [left, right, acc]
        flag = emit.integer(1)
        if instruction.form == "mfma":
            arguments += [emit.i32(0)] * 3  # cbsz, abid, blgp: no broadcast, no swizzle
        elif instruction.form == "iu":
            signs = [emit.constant(flag, not is_unsigned) for is_unsigned in unsigned]
            clamp = emit.constant(flag, 0)
            arguments = [signs[0], left, signs[1], right, acc, clamp]
        return emit.intrinsic(f"llvm.amdgcn.{instruction.intrinsic}", arguments, acc.type)

    def cast(self, value: ir.Value, source: ir.Type, result: ir.Type, signed: bool) -> ir.Value:
        """Return `value` converted by an instruction."""
        return lower_cast.cast(self.chip, value, source, result, signed)

    def native(self, op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
        """Return the result of an op that LLVM has under another name, or does at length."""
        if op.name == "arith.truncf" and self._rounds_to_bf16(op, operands):
            return lower_cast.round_to_bf16(operands[0])
        return lower_math.native(op, operands)

    def _rounds_to_bf16(self, op: ir.Operation, operands: Sequence[ir.Value]) -> bool:
        """Whether it is a conversion of pairs that the chip has no instruction for."""
        type_ = operands[0].type
        if self.chip.bf16_convert or not isinstance(type_, ir.VectorType) or type_.shape[0] % 2:
            return False
        f32, bf16 = ir.F32Type.get(), ir.BF16Type.get()
        return type_.element_type == f32 and element_of(op.results[0].type) == bf16

    # Debugging.

    def print_line(self, format: str, arguments: Sequence[ir.Value]) -> None:
        """Refuse.

        Raises:
            KernelError: Printing takes a service in the host's process that HIP's own compiler
                sets up; nothing of it is in a code object that stands alone.
        """
        raise KernelError(
            "device_print does not work on AMD GPUs",
            hint='run the kernel on the host, as under `tile.device("host")`, where it prints',
        )

    def stop(self, message: str) -> None:
        """End the kernel by a trap; the message is kept beside the code (`assertions`)."""
        assertions.keep(message)
        llvm.intr_trap()


def shared_memory(chip: Chip) -> SharedMemory:
    """Return the banks of a chip's LDS."""
    return _LDS.get(chip.number, RDNA)


def _fence(ordering: str, scope: str, memory: str) -> None:
    """Order memory accesses; those of LDS alone unless `memory` is "all"."""
    made = llvm.fence(llvm.AtomicOrdering[ordering], syncscope=scope)
    if memory == "shared":
        made.operation.attributes["llvm.mmra"] = ir.Attribute.parse(_LOCAL_ONLY)


def _pin_loads() -> None:
    """Keep loads that are above a barrier above it.

    LLVM 22.1 moves a load over fences and barriers into the branch that alone needs it (its pass
    MachineSink looks for stores only). An empty piece of assembly that may write memory is one to
    it, and is no instruction.
    """
    llvm.inline_asm(None, [], "", "~{memory}", has_side_effects=True)


def _wait_for_lds(chip: Chip) -> None:
    """Wait until the wave's accesses to LDS are done.

    The fence says so too, but at the head of a loop LLVM 22.1 may delete its wait again, before it
    knows what the end of the loop leaves outstanding (its pass SIInsertWaitcnts). This one it
    keeps, and it makes one of two that stand together.
    """
    if chip.split_waits:
        emit.intrinsic("llvm.amdgcn.s.wait.dscnt", [emit.constant(emit.integer(16), 0)])
        return
    counts = _LDS_COUNT_GFX11 if chip.number >= 0x1100 else _LDS_COUNT_GFX9
    emit.intrinsic("llvm.amdgcn.s.waitcnt", [emit.i32(counts)])


def _carried(value: ir.Value, carrier: ir.Type) -> ir.Value:
    """Return the bits of a vector as the type that an intrinsic takes them in."""
    if isinstance(carrier, ir.VectorType):
        return emit.bitcast(value, carrier.element_type)
    return emit.extract(emit.bitcast(value, carrier), 0)


def _not_here(what: str) -> CompilerBug:
    return CompilerBug(f"expected no {what} on AMD, whose pipeline makes none")
