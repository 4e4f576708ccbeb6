"""What waves have under way in memory, and when it takes effect.

Memory answers when it likes; an instruction that needs the answer must stand behind a wait for it.
Each wave counts what it has under way in *queues*, and a wait names how many may stay:

    queue     what counts in it                                 gfx9     gfx11    gfx12
    vm        loads from global and private memory, atomics     vmcnt    vmcnt    loadcnt
              that return, copies to LDS
    vs        stores, atomics that do not return                vmcnt    vscnt    storecnt
    ds        LDS                                               lgkmcnt  lgkmcnt  dscnt
    km        scalar loads                                      lgkmcnt  lgkmcnt  kmcnt

A queue completes in the order of issue, but for km, which completes in any order, so that only a
wait for none completes it; where it shares a counter with ds, a wait that leaves some says of ds
what it would say without km. Flat instructions count in two queues, and are complete when both are.

LAZY: what a load returns is read from global memory, and goes to its registers, only when a wait
covers it; until then they hold poison. A store reaches global memory only then, too. What one wave
does to one address stays in order all the same, as in hardware: a load that a wave's own later
store would overtake is read before it, a store that a wave's own later load would miss is done
before it. A store that nobody waits for is done at the end of its wave, or after `_PATIENCE`
accesses of others, who may be waiting for it. EAGER: everything happens at issue. In both,
`touched` files a finding for an instruction that names a register before the load that writes it is
covered.

On gfx9 the waves of a workgroup share one cache that takes their accesses in the order in which
they come, so a barrier is enough to order them: what is under way then is read and stored there
(`met`), although registers stay late. LLVM leaves out the wait, too.

LDS is different: its effects happen at issue in both modes (the LDS unit serves a wave in order),
and only the registers are late; that other waves may see them is a matter of time (`LdsClocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clock, Clocks, Warps
from tiledsl.targets.gpu.emulator.cohort import Mask, Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.pending import Pending, Units
from tiledsl.targets.gpu.emulator.program import Instruction

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_PATIENCE = 20_000
"""Operations issued by anybody after which a store that nobody waits for is done."""
_GFX10 = 0x1000
_MOST = 63
"""Operations of one queue that a counter of a wave can count; the next one waits for the oldest."""
_SCALAR_BIT = 512
"""Bit of s0 in a set of registers."""


class Event(Enum):
    """What an operation counts as."""

    LOAD = "load"
    STORE = "store"
    LDS = "LDS"
    SCALAR = "scalar load"
    FLAT_LOAD = "flat load"
    FLAT_STORE = "flat store"


_QUEUES = {
    Event.LOAD: ("vm",),
    Event.STORE: ("vs",),
    Event.LDS: ("ds",),
    Event.SCALAR: ("km",),
    Event.FLAT_LOAD: ("vm", "ds"),
    Event.FLAT_STORE: ("vs", "ds"),
}

Fetch = Callable[[], Any]
"""Reads memory."""
Deliver = Callable[[Any, "Mask | None"], None]
"""Takes effect with what `Fetch` returned (None: poison), for waves in a mask (None: all its)."""


@dataclass(frozen=True)
class Reach:
    """The bytes of global memory that each wave may touch: from `low` to below `high`, (waves,)."""

    low: NDArray[np.uint64]
    high: NDArray[np.uint64]


@dataclass(eq=False)
class Operation:
    """One instruction's asynchronous operation.

    Attributes:
        instruction: Which.
        waves: Who issued it.
        registers: What it writes, a bit a register.
        event: What it counts as.
        fetch: Reads what it returns; None for stores.
        deliver: Takes effect; None once it has.
        reach: What it touches of global memory; None where no order is to be kept.
        born: How many operations had been issued by then.
        time: For LDS: each wave's time at issue; None where it does not touch LDS.
    """

    instruction: Instruction
    waves: Units
    registers: int
    event: Event
    fetch: Fetch | None
    deliver: Deliver | None
    reach: Reach | None
    born: int
    time: NDArray[np.uint32] | None = None
    waiting: Mask = field(init=False)
    """Rows (positions in `waves`) that no wait has covered yet."""
    left: NDArray[np.int8] = field(init=False)
    """Queues that have still to complete each row."""
    acted: Mask = field(init=False)
    """Rows that have taken effect."""
    over: bool = False
    """Whether waits have covered every row."""
    _fetched: bool = False
    _values: Any = None

    def __post_init__(self) -> None:
        rows = len(self.waves)
        self.waiting = np.ones(rows, np.bool_)
        self.left = np.full(rows, len(_QUEUES[self.event]), np.int8)
        self.acted = np.full(rows, self.deliver is None)

    def take(self) -> Any:
        """Return what it reads, reading memory the first time."""
        if not self._fetched and self.fetch is not None:
            self._values = self.fetch()
            self._fetched = True
        return self._values

    def act(self, rows: Mask, waves: int) -> None:
        """Take effect for some rows, once."""
        rows = rows & ~self.acted
        if self.deliver is None or not rows.any():
            return
        values = self.take()
        if rows.all():
            self.deliver(values, None)
        else:
            mask = np.zeros(waves, np.bool_)
            mask[self.waves[rows]] = True
            self.deliver(values, mask)
        self.acted |= rows


class Waits:
    """The queues of all waves of a cohort."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.shared_counter = machine.code.chip.number < _GFX10
        """Whether loads and stores count together, in order."""
        self._lazy = machine.cohort.mode is Mode.LAZY
        queues = {name: Pending(machine.waves) for name in ("vm", "vs", "ds", "km")}
        if self.shared_counter:
            queues["vs"] = queues["vm"]
        self._queues = queues
        self._operations: list[Operation] = []
        self._ready: list[tuple[Operation, Mask]] = []
        """What a wait has just completed."""
        self._issued = 0

    # --- issue -----------------------------------------------------------------------------------

    def issue(
        self,
        event: Event,
        instruction: Instruction,
        registers: int,
        fetch: Fetch | None,
        deliver: Deliver,
        *,
        reach: Reach | None = None,
        late: bool = True,
        held: bool = False,
        lds_time: NDArray[np.uint32] | None = None,
    ) -> None:
        """File an operation of the machine's current group.

        Args:
            event: What it counts as.
            instruction: Which.
            registers: The registers it writes, as `text.registers_of` numbers them.
            fetch: Reads what it returns, for all the group's active lanes; None for stores.
            deliver: Writes registers or memory.
            reach: The global memory it touches, where order has to be kept.
            late: Whether LAZY may put off what it does to memory; registers are late all the same.
            held: Whether it takes effect only when it is waited for in EAGER mode, too.
            lds_time: Each wave's time, (waves,), where other waves could see it in LDS.
        """
        machine = self._machine
        self._issued += 1
        waves = np.flatnonzero(machine.active)
        operation = Operation(
            instruction, waves, registers, event, fetch, deliver, reach, self._issued, lds_time
        )
        if self._lazy:
            if not late and registers:
                operation.take()
            elif not late:
                operation.act(operation.waiting, machine.waves)
            if registers:
                deliver(None, None)
        elif not held:
            operation.act(operation.waiting, machine.waves)
        self._operations.append(operation)
        machine.outstanding |= registers

        def complete(rows: Mask) -> None:
            self._complete(operation, rows)

        for queue in dict.fromkeys(_QUEUES[event]):
            self._queues[queue].issue(waves, complete)
            if len(self._queues[queue]) > _MOST:
                self.wait(queue, _MOST)

    def reach(self, address: NDArray[np.uint64], where: Units | None, width: int) -> Reach | None:
        """Return what an access may touch, where that matters (LAZY); see `Lanes` for `where`."""
        if not self._lazy:
            return None
        machine = self._machine
        low = np.full(machine.waves, np.iinfo(np.uint64).max, np.uint64)
        high = np.zeros(machine.waves, np.uint64)
        if where is None:
            by_wave = address.reshape(machine.waves, -1)
            low, high = by_wave.min(1), by_wave.max(1) + np.uint64(width)
        elif len(address):
            wave = where // machine.wave_size
            np.minimum.at(low, wave, address)
            np.maximum.at(high, wave, address + np.uint64(width))
        return Reach(low, high)

    def order(self, reach: Reach | None, *, writes: bool) -> None:
        """Keep the order of one wave's accesses: call before one that touches `reach`."""
        if reach is None:
            return
        for operation in self._operations:
            other = operation.reach
            if other is None:
                continue
            if operation.event in (Event.STORE, Event.FLAT_STORE):
                if operation.acted.all():
                    continue
                rows = self._overlap(operation, other, reach)
                if self._issued - operation.born > _PATIENCE:
                    rows = ~operation.acted
                operation.act(rows, self._machine.waves)
            elif writes and self._overlap(operation, other, reach).any():
                operation.take()

    def _overlap(self, operation: Operation, one: Reach, other: Reach) -> Mask:
        waves = operation.waves
        low, high = other.low[waves], other.high[waves]
        overlap = (one.low[waves] < high) & (low < one.high[waves])
        return overlap & operation.waiting & self._machine.active[waves]

    def met(self) -> None:
        """Let the current group meet at a barrier of its workgroup."""
        if not self.shared_counter:
            return
        active = self._machine.active
        for operation in self._operations:
            if operation.reach is None or not active[operation.waves].any():
                continue
            if operation.event in (Event.STORE, Event.FLAT_STORE):
                operation.act(operation.waiting & active[operation.waves], self._machine.waves)
            else:
                operation.take()

    # --- completion ------------------------------------------------------------------------------

    def wait(self, queue: str, keep: int) -> None:
        """Let the current group's operations complete but for the youngest `keep` of each wave."""
        if queue == "km" and keep:
            return
        pending = self._queues[queue]
        if pending:
            pending.wait(self._machine.active, keep)
            self._act()

    def wait_all(self) -> None:
        """Let everything of the current group complete."""
        for queue in self._queues:
            self.wait(queue, 0)

    def ended(self, mask: Mask) -> None:
        """Let everything of waves that end complete."""
        for pending in self._queues.values():
            if pending:
                pending.wait(mask, 0)
        self._act()

    def _complete(self, operation: Operation, rows: Mask) -> None:
        """Note that one queue has completed some rows."""
        operation.left[rows] -= 1
        done = rows & (operation.left <= 0)
        if done.any():
            self._ready.append((operation, done))
            operation.waiting &= ~done
            operation.over = not operation.waiting.any()

    def _act(self) -> None:
        """Let what has become complete take effect, and learn which registers are outstanding.

        Loads read before stores write: waves that go in step wait at the same time, and one's load
        must not see another's store because of that. (Its own it has seen to: `order`.)
        """
        if not self._ready:
            return
        for operation, _ in self._ready:
            operation.take()
        for operation, rows in self._ready:
            operation.act(rows, self._machine.waves)
        self._ready = []
        self._operations = [one for one in self._operations if not one.over]
        outstanding = 0
        for operation in self._operations:
            outstanding |= operation.registers
        self._machine.outstanding = outstanding

    # --- what should have waited -----------------------------------------------------------------

    def touched(self, instruction: Instruction, registers: int, destination: int) -> None:
        """File findings for an instruction of the current group that names outstanding registers.

        Args:
            instruction: Which.
            registers: Those of its registers that are outstanding.
            destination: The registers that it loads itself, if it is a load that counts in "vm":
                loads of one queue write in order, so those need no wait. Where it is of half a
                register, that is so of other such loads only; it needs what a whole one writes.
        """
        machine = self._machine
        half = _is_half(instruction)
        for operation in self._operations:
            hit = operation.registers & registers
            if operation.event is Event.LOAD and (not half or _is_half(operation.instruction)):
                hit &= ~destination
            late = operation.waiting & machine.active[operation.waves]
            if not hit or not late.any():
                continue
            wave = int(operation.waves[late][0])
            machine.cohort.report(
                Kind.MISSING_WAIT,
                instruction,
                f"{_spelled(hit)} used before a wait for what `{operation.instruction.text}` loads",
                int(machine.thread_of[wave, 0]),
                int(np.count_nonzero(late)),
            )

    def oldest_lds(self, warps: Warps) -> NDArray[np.uint32]:
        """Return each warp's time of its oldest access to LDS that no wait has covered."""
        oldest = np.full(self._machine.waves, np.iinfo(np.uint32).max, np.uint32)
        for operation in self._operations:
            if operation.time is not None:
                waves = operation.waves[operation.waiting]
                oldest[waves] = np.minimum(oldest[waves], operation.time[waves])
        return oldest[warps]


class LdsClocks(Clocks):
    """Clocks of waves whose accesses to LDS become known to others only once they were waited for.

    A barrier makes known what a wave did until then, but not what the LDS unit may not have done
    yet. Each access has a time of its own; what is released ends before the oldest access that is
    still under way.
    """

    waits: Waits

    def advance(self, warp: Warps) -> NDArray[np.uint32]:
        """Begin a new time for each warp, for an access to LDS; returns all warps' own times."""
        self.seen[warp, self.rank[warp]] += 1
        self.version += 1
        return self.times().ravel()

    def release(self, warp: Warps) -> Clock:
        """Return what each of the (distinct) warps may make known, and begin a new time for it."""
        known = super().release(warp)
        rows = np.arange(len(warp))
        own = known[rows, self.rank[warp]]
        known[rows, self.rank[warp]] = np.minimum(own, self.waits.oldest_lds(warp) - np.uint32(1))
        return known


def _is_half(load: Instruction) -> bool:
    """Say whether a load writes half a register and keeps the other half."""
    return "_d16" in load.text


def _spelled(registers: int) -> str:
    """Name a set of registers: the first run of one file."""
    first = (registers & -registers).bit_length() - 1
    count = 1
    while registers >> (first + count) & 1:
        count += 1
    if first >= _SCALAR_BIT:
        file, number = "s", first - _SCALAR_BIT
    else:
        file, number = ("v", first) if first < 256 else ("a", first - 256)
    return f"{file}{number}" if count == 1 else f"{file}[{number}:{number + count - 1}]"
