"""The machine that executes PTX for one cohort: threads, registers, and the memories they see.

Units are threads: `active[t]` says whether flat thread t takes part in the current step. Registers
are `regs[slot]`, one array over all threads; the array in a slot belongs to that slot alone.

Address spaces. A shared or local address is an offset from 0; a generic one lies in a window far
above every address of a process. Global, constant and generic addresses of the same byte are one
number, so `cvta` of those does nothing.

    offset in shared memory    <->  SHARED_WINDOW + offset
    offset in a local frame    <->  LOCAL_WINDOW + offset

What a family of instructions keeps from one step to the next (copies under way, mbarriers) is a
*part*: a class that is made with the machine, `machine.part(Copies)`, on its first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.barriers import Barriers
from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.cohort import Access, Cohort, Lanes, Mode
from tiledsl.targets.gpu.emulator.endless import Arrays
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction
from tiledsl.targets.gpu.emulator.scheduler import Mask
from tiledsl.targets.gpu.emulator.shared_memory import SharedMemory
from tiledsl.targets.nvptx.chips import WARP_SIZE, Chip
from tiledsl.targets.nvptx.emulator.local_memory import LocalMemory

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.in_flight import Registers

SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
WINDOW_BYTES = 1 << 32

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Layout:
    """What a kernel needs of a machine.

    Attributes:
        chip: What it was compiled for.
        registers: The NumPy type of each register's array.
        static_shared: Shared memory that the text declares, in bytes; dynamic comes after it.
        local_bytes: Bytes of each thread's local frame.
        granule: The smallest shared access, in bytes.
        cluster: Blocks a cluster, along x, y and z.
        parts: The parts that are made with the machine.
        instructions: What each instruction does to registers, in kernels that have `wgmma`.
        registers_at_entry: Registers a thread that the text asks for (`.maxnreg`), or 0.
    """

    chip: Chip
    registers: Sequence[Any]
    static_shared: int
    local_bytes: int
    granule: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    parts: Sequence[Callable[[Machine], Any]] = ()
    instructions: Sequence[Registers] = ()
    registers_at_entry: int = 0


class Machine(Engine):
    """See the module's docstring.

    Attributes:
        threads: Flat threads in all.
        regs: Every register.
        lane: Each thread's lane in its warp, uint32.
        memory: Global memory.
        shared: Shared memory.
        local: Local memory.
        clocks: The warps' clocks.
        barriers: The sixteen barriers of each block.
        gatherings: Who waits for its warp, by block; `convergence` keeps it.
    """

    cohort: Cohort

    def __init__(self, cohort: Cohort, blocks: Sequence[BasicBlock], layout: Layout) -> None:
        if cohort.threads % WARP_SIZE:
            raise CompilerBug(f"expected whole warps, found {cohort.threads} threads a block")
        self.threads = cohort.blocks * cohort.threads
        super().__init__(cohort, blocks, self.threads)
        self.layout = layout
        self.regs: list[NDArray[Any]] = [
            _garbage(self.threads, held, cohort.mode) for held in layout.registers
        ]
        self.lane = (np.arange(self.threads) % WARP_SIZE).astype(np.uint32)
        self.memory = cohort.memory
        cluster = int(np.prod(layout.cluster))
        whole = cohort.blocks % cluster == 0
        self.clocks = Clocks(cohort.blocks, cohort.warps, cluster if whole else 1)
        shared_bytes = layout.static_shared + cohort.shared_bytes
        self.shared = SharedMemory(cohort, self.clocks, shared_bytes, layout.granule)
        self.local = LocalMemory(self.threads, layout.local_bytes)
        live = self.scheduler.live
        self.barriers = Barriers(self.clocks, cohort.block_of, cohort.warp_of, live)
        self._printed: dict[int, str] = {}
        """What threads have printed that is not shown yet."""
        self.gatherings: dict[int, Any] = {}
        self._parts: dict[Any, Any] = {}
        self._special: dict[str, NDArray[Any]] = {}
        self._lanes: Lanes | None = None
        self._arguments = 0
        self._ticks = 0
        self.watch: Callable[[BasicBlock], int | None] | None = None
        """Executes a block in the engine's stead, where something looks at each instruction."""
        self.afterwards: list[Callable[[], None]] = []
        """What parts do once every thread has ended."""
        for part in layout.parts:
            self.part(part)

    def execute(self, block: BasicBlock) -> int | None:
        """Run one block for the current group."""
        if self.watch is not None:
            return self.watch(block)
        return super().execute(block)

    def registers(self) -> Arrays:
        """Return every register."""
        return self.regs

    def memories(self) -> Arrays:
        """Return the bytes of shared, local and global memory."""
        return self.shared.data, self.local.data, *self.memory.contents()

    # --- which threads ---------------------------------------------------------------------------

    def enter(self, mask: Mask) -> None:
        """Make `mask` the current group."""
        super().enter(mask)
        self._lanes = None

    @property
    def lanes(self) -> Lanes:
        """The active flat threads, ascending."""
        if self._lanes is None:
            self._lanes = np.flatnonzero(self.active)
        return self._lanes

    @property
    def live(self) -> Mask:
        """The threads that have not ended."""
        return self.scheduler.live

    def narrowed(self, mask: Mask, action: Callable[[Machine], Any]) -> Any:
        """Do something with `mask`, a part of the active threads, as the active ones."""
        before = self.active, self.count, self.full, self._lanes
        self.active, self._lanes = mask, None
        self.count = int(np.count_nonzero(mask))
        self.full = False
        found = action(self)
        self.active, self.count, self.full, self._lanes = before
        return found

    def active_warps(self) -> int:
        """Return in how many warps some thread is active."""
        if self.count == self.threads:
            return self.threads // WARP_SIZE
        return int(np.count_nonzero(self.active.reshape(-1, WARP_SIZE).any(1)))

    def end(self, mask: Mask) -> None:
        """End threads; barriers that waited for them alone complete."""
        self.scheduler.exit(mask)
        self.barriers.reconsider()

    # --- memories --------------------------------------------------------------------------------

    def access(self, instruction: Instruction, lanes: Lanes | None = None) -> Access:
        """Return who makes an access: the active threads, or some of them."""
        return Access(self.cohort, instruction, self.lanes if lanes is None else lanes)

    @property
    def arguments(self) -> int:
        """The generic address of the kernel's arguments, which are copied there on first use."""
        if not self._arguments:
            size = len(self.cohort.arguments)
            self._arguments = self.memory.allocate(max(size, 1), written=True)
            data = np.frombuffer(self.cohort.arguments, np.uint8)
            self.memory.bytes_at(self._arguments, size)[:] = data
        return self._arguments

    def run(self) -> None:
        """Run every thread to its end, or to a deadlock."""
        with np.errstate(all="ignore"):
            try:
                super().run()
            finally:
                self._show()
            for finish in self.afterwards:
                finish()
        sys.stdout.flush()
        if self._arguments:
            self.memory.free(self._arguments)
            self._arguments = 0

    def print(self, texts: Mapping[int, str]) -> None:
        """Let threads print; it is shown with the next print, or at the end.

        Until then a thread that traps may take back what it printed last: the finding says it.
        """
        self._show()
        self._printed = dict(texts)

    def last_words(self, lanes: Lanes) -> str:
        """Return what the first of some threads printed last, and show it of none of them."""
        words = [self._printed.pop(int(thread), "") for thread in lanes]
        return words[0]

    def _show(self) -> None:
        if self._printed:
            sys.stdout.write("".join(self._printed.values()))
            self._printed = {}

    def part(self, kind: Callable[[Machine], _Part]) -> _Part:
        """Return the part of a class, made with this machine when it is first asked for."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)
        return found

    # --- special registers -----------------------------------------------------------------------

    def special(self, name: str) -> NDArray[Any]:
        """Return a special register for all threads, of its own unsigned type.

        Raises:
            CompilerBug: There is none of that name.
        """
        if name in self._special:
            return self._special[name]
        if name in _CLOCKS:
            self._ticks += 32
            return np.full(self.threads, self._ticks, _CLOCKS[name])
        if name == "%activemask":
            return self._active_masks()
        make = _SPECIAL.get(name.partition(".")[0])
        if make is None:
            raise CompilerBug(f"the PTX emulator does not know the register `{name}`")
        value = np.broadcast_to(make(self, name.partition(".")[2]), self.threads)
        self._special[name] = np.ascontiguousarray(value)
        return self._special[name]

    def _active_masks(self) -> NDArray[np.uint32]:
        bits = np.packbits(self.active, bitorder="little").view(np.uint32)
        return np.repeat(bits, WARP_SIZE)

    def _report_deadlock(self) -> None:
        """Report whoever waits; waiting for the rest of its own warp is a divergent barrier."""
        parked = self.scheduler.parked
        divergent = [one for one in parked if getattr(one.wait, "divergent", False)]
        if not divergent:
            super()._report_deadlock()
        for one in divergent:
            self.cohort.report(
                Kind.DIVERGENT_BARRIER,
                self.blocks[one.at].instructions[-1],
                one.wait.describe(one.mask),
                self.first_thread(one.mask),
                int(np.count_nonzero(one.mask)),
            )


_GARBAGE = {Mode.EAGER: b"\xcd", Mode.LAZY: b"\x7d"}
"""Of float32 -4e8 and 2e37: a sum shows either, a minimum or maximum the one or the other."""


def _garbage(threads: int, held: Any, mode: Mode) -> NDArray[Any]:
    """Return what a register holds before anything is written to it: on hardware, anything.

    A fixed pattern that stands out, so that a kernel that reads it goes wrong, and always the same
    way. A predicate is false.
    """
    if held is np.bool_:
        return np.zeros(threads, np.bool_)
    return np.full(
        threads, int.from_bytes(_GARBAGE[mode] * np.dtype(held).itemsize, "little"), held
    )


_AXES = {"x": 0, "y": 1, "z": 2}
_CLOCKS = {
    "%clock": np.uint32,
    "%clock_hi": np.uint32,
    "%clock64": np.uint64,
    "%globaltimer": np.uint64,
    "%globaltimer_lo": np.uint32,
    "%globaltimer_hi": np.uint32,
}
_Special = Callable[[Machine, str], Any]


def _uint32(values: Any) -> NDArray[np.uint32]:
    return np.asarray(values).astype(np.uint32)


def _thread_id(machine: Machine, axis: str) -> NDArray[np.uint32]:
    if axis != "x":
        return _uint32(0)
    return _uint32(np.arange(machine.threads) % machine.cohort.threads)


def _program_id(machine: Machine, axis: str) -> NDArray[np.int64]:
    cohort = machine.cohort
    return cohort.programs[cohort.block_of, _AXES[axis]]


def _cluster_rank(machine: Machine) -> Any:
    """Return each thread's block's number in its cluster."""
    width = machine.layout.cluster
    x, y, z = (_program_id(machine, axis) % width[i] for axis, i in _AXES.items())
    return x + width[0] * (y + width[1] * z)


def _program_count(machine: Machine, axis: str) -> int:
    return machine.cohort.grid[_AXES[axis]]


def _lane_mask(machine: Machine, relation: str) -> NDArray[np.uint32]:
    bit = np.uint64(1) << machine.lane.astype(np.uint64)
    below = bit - np.uint64(1)
    every = np.uint64(0xFFFFFFFF)
    masks = {
        "eq": bit,
        "lt": below,
        "le": below | bit,
        "gt": every & ~(below | bit),
        "ge": every & ~below,
    }
    return _uint32(masks[relation])


_SPECIAL: dict[str, _Special] = {
    "%tid": _thread_id,
    "%ntid": lambda machine, axis: _uint32(machine.cohort.threads if axis == "x" else 1),
    "%ctaid": lambda machine, axis: _uint32(_program_id(machine, axis)),
    "%nctaid": lambda machine, axis: _uint32(_program_count(machine, axis)),
    "%laneid": lambda machine, _: machine.lane,
    "%warpid": lambda machine, _: _uint32(machine.cohort.warp_of % machine.cohort.warps),
    "%nwarpid": lambda machine, _: _uint32(machine.cohort.warps),
    "%smid": lambda machine, _: _uint32(machine.cohort.block_of),
    "%nsmid": lambda machine, _: _uint32(machine.cohort.blocks),
    "%gridid": lambda machine, _: np.uint64(0),
    "%lanemask_eq": lambda machine, _: _lane_mask(machine, "eq"),
    "%lanemask_lt": lambda machine, _: _lane_mask(machine, "lt"),
    "%lanemask_le": lambda machine, _: _lane_mask(machine, "le"),
    "%lanemask_gt": lambda machine, _: _lane_mask(machine, "gt"),
    "%lanemask_ge": lambda machine, _: _lane_mask(machine, "ge"),
    "%dynamic_smem_size": lambda machine, _: _uint32(machine.cohort.shared_bytes),
    "%total_smem_size": lambda machine, _: _uint32(machine.shared.size),
    "%is_explicit_cluster": lambda machine, _: np.bool_(machine.layout.cluster != (1, 1, 1)),
    "%cluster_ctaid": lambda machine, axis: _uint32(
        _program_id(machine, axis) % machine.layout.cluster[_AXES[axis]]
    ),
    "%cluster_nctaid": lambda machine, axis: _uint32(machine.layout.cluster[_AXES[axis]]),
    "%clusterid": lambda machine, axis: _uint32(
        _program_id(machine, axis) // machine.layout.cluster[_AXES[axis]]
    ),
    "%nclusterid": lambda machine, axis: _uint32(
        -(-_program_count(machine, axis) // machine.layout.cluster[_AXES[axis]])
    ),
    "%cluster_ctarank": lambda machine, _: _uint32(_cluster_rank(machine)),
    "%cluster_nctarank": lambda machine, _: _uint32(np.prod(machine.layout.cluster)),
    **{f"%envreg{i}": lambda machine, _: _uint32(0) for i in range(32)},
}
