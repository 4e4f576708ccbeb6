"""The instructions that wait: `s_waitcnt` of gfx9 to gfx11, `s_wait_*cnt` of gfx12, every spelling.

    s_waitcnt vmcnt(0) lgkmcnt(1)        s_waitcnt 0xc07f        s_waitcnt_vscnt null, 0x0
    s_wait_loadcnt 0x2                   s_wait_loadcnt_dscnt 0x103              s_wait_idle

A counter is one or two of the queues of `waits`. Counters of exports, samplers and rays count
nothing that a compute kernel has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.text import Constant, Parsed
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_COUNTERS = {
    "vmcnt": ("vm",), "lgkmcnt": ("ds", "km"), "vscnt": ("vs",), "expcnt": (),
    "loadcnt": ("vm",), "storecnt": ("vs",), "dscnt": ("ds",), "kmcnt": ("km",),
    "samplecnt": (), "bvhcnt": (),
}  # fmt: skip
"""The queues of each counter."""
_SPELLED = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)\((0x[0-9a-fA-F]+|\d+)\)")


def _wait_step(waits: list[tuple[str, int]]) -> Step:
    if len(waits) == 1:
        ((queue, keep),) = waits

        def one(machine: Machine) -> None:
            machine.memory.waits.wait(queue, keep)

        return one

    def several(machine: Machine) -> None:
        for queue, keep in waits:
            machine.memory.waits.wait(queue, keep)

    return several


def _waits_for(counter: str, keep: int) -> list[tuple[str, int]]:
    return [(queue, keep) for queue in _COUNTERS[counter]]


def _waitcnt(parsed: Parsed, context: Context) -> Step:
    """Decode `s_waitcnt`: named counters, or all in one number."""
    rest = parsed.rest
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", rest):
        found = _unpacked(int(rest, 0), context)
    else:
        found = [(name, int(value, 0)) for name, value in _SPELLED.findall(rest)]
        if _SPELLED.sub("", rest).strip(" &,"):
            raise CompilerBug(f"the AMDGPU emulator does not know the wait `{parsed.text}`")
    return _wait_step([one for name, keep in found for one in _waits_for(name, keep)])


def _unpacked(value: int, context: Context) -> list[tuple[str, int]]:
    """Take the one number of `s_waitcnt` apart (LLVM's AMDGPUBaseInfo, `decodeWaitcnt`)."""
    if context.generation < 10:
        vm, lgkm = value & 15 | value >> 10 & 48, value >> 8 & 15
    else:
        vm, lgkm = value >> 10 & 63, value >> 4 & 63
    return [("vmcnt", vm), ("lgkmcnt", lgkm)]


def _single(parsed: Parsed, context: Context) -> Step:
    """Decode the waits for one counter: `s_waitcnt_vscnt null, 0x0`, `s_wait_loadcnt 0x1`."""
    del context
    counter = parsed.stem.removeprefix("s_waitcnt_").removeprefix("s_wait_")
    keep = parsed.operands[-1]
    if not isinstance(keep, Constant) or keep.integer is None:
        raise CompilerBug(f"the AMDGPU emulator does not know the wait `{parsed.text}`")
    return _wait_step(_waits_for(counter, keep.integer))


def _pair(parsed: Parsed, context: Context) -> Step:
    """Decode `s_wait_loadcnt_dscnt` and its like: the ds count in the low six bits."""
    del context
    both = parsed.operands[-1]
    if not isinstance(both, Constant) or both.integer is None:
        raise CompilerBug(f"the AMDGPU emulator does not know the wait `{parsed.text}`")
    first = "vm" if parsed.stem == "s_wait_loadcnt_dscnt" else "vs"
    return _wait_step([(first, both.integer >> 8 & 63), ("ds", both.integer & 63)])


def _idle(parsed: Parsed, context: Context) -> Step:
    del parsed, context
    return lambda machine: machine.memory.waits.wait_all()


_WAIT = InstructionClass.SYNCHRONIZE
TABLE = {
    "s_waitcnt": Entry(_waitcnt, _WAIT),
    "s_wait_idle": Entry(_idle, _WAIT),
    "s_wait_loadcnt_dscnt": Entry(_pair, _WAIT),
    "s_wait_storecnt_dscnt": Entry(_pair, _WAIT),
    **{
        f"s_waitcnt_{name}": Entry(_single, _WAIT)
        for name in ("vmcnt", "lgkmcnt", "vscnt", "expcnt")
    },
    **{
        f"s_wait_{name}": Entry(_single, _WAIT)
        for name in ("loadcnt", "storecnt", "dscnt", "kmcnt", "samplecnt", "bvhcnt", "expcnt")
    },
}
