"""A machine that runs nothing, to try on it the parts that copies and mbarriers are made of.

Threads are flat; an instruction is named by its index, which findings show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.targets.gpu.emulator.worlds import instruction
from tests.targets.nvptx.emulator.running import begin, in_clusters, kernel
from tiledsl.targets.gpu.emulator.findings import Finding
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.nvptx.emulator.async_proxy import AsyncProxy
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.mbarrier_state import Mbarriers, Use

_UNREACHED = "bra END; mbarrier.inval.shared.b64 [s]; fence.proxy.async; END:"
"""Has the machine know shared memory by 8 bytes, and what the asynchronous proxy sees."""


def idle(*, threads: int = 64, cluster: int = 1, **more: Any) -> Machine:
    """Return a machine with 1024 bytes of shared memory a block; its threads only have to end."""
    text = in_clusters(kernel(_UNREACHED, 0, chip="sm_90a", shared=1024), cluster)
    return begin(text, "sm_90a", GlobalMemory(), threads=threads, blocks=cluster, **more)


def meet(machine: Machine) -> None:
    """Let every warp fence what it wrote, and learn what every other one did."""
    warps = np.arange(len(machine.clocks.rank))
    machine.part(AsyncProxy).fence(warps)
    known = machine.clocks.release(warps).max(0)
    machine.clocks.acquire(warps, np.broadcast_to(known, (len(warps), len(known))))


def make(machine: Machine, count: int, offset: int = 0, *, lane: int = 0, index: int = 0) -> None:
    """Let one thread make an mbarrier, and everybody know of it."""
    lanes, offsets, counts = np.array([lane]), np.array([offset]), np.array([count])
    machine.part(Mbarriers).initialize(instruction(index), lanes, offsets, counts)
    meet(machine)


def use(machine: Machine, lanes: Sequence[int], address: Any = 0, *, index: int = 1) -> Use:
    """Return a use of mbarriers by threads: at one address, or each at its own."""
    addresses = np.broadcast_to(np.asarray(address, np.int64), len(lanes))
    return machine.part(Mbarriers).use(instruction(index), np.array(lanes), addresses)


def over(machine: Machine, asking: Use, number: int = 0, *, acquire: bool = True) -> list[bool]:
    """Return for which threads of a use a phase is over, by its number."""
    wanted = np.full(len(asking.lanes), number)
    barriers = machine.part(Mbarriers)
    return barriers.over(asking, wanted, parity=False, acquire=acquire).tolist()


def found(machine: Machine) -> Sequence[Finding]:
    """Return what was found so far."""
    return machine.cohort.findings.all()
