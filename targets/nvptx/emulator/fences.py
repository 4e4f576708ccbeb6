"""Fences, and what a kernel tells the chip about other grids.

A cohort executes one instruction at a time, so what a fence does to memory shows in no value. What
a kernel cannot do without is told to those who look for it: `fence.proxy.async` (`async_proxy`),
and what lets programs see each other's stores (`orders`).

Source: PTX ISA 9.7.13.4, "membar / fence"; 9.7.13.13, "griddepcontrol".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.async_proxy import AsyncProxy
from tiledsl.targets.nvptx.emulator.mbarrier_state import Mbarriers
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.orders import with_order
from tiledsl.targets.nvptx.emulator.warps import Warps

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_SEMANTICS = ("sc", "acq_rel", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


def _nothing(machine: Machine) -> None:
    """Do nothing: see the module's docstring."""


def _decode_fence(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.ignore(*_SEMANTICS, *_SCOPES)
    options.ignore("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    options.done()
    return with_order(_nothing, instruction.modifiers, both=instruction.stem == "membar")


def _decode_proxy(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.flag("proxy")
    kind = options.choice({"alias", "async", "tensormap::generic", "async::generic"})
    options.ignore(*_SEMANTICS, *_SCOPES, "global", "shared::cta", "shared::cluster")
    options.ignore("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    options.done()
    everywhere = "global" not in instruction.modifiers
    if kind != "async" or not everywhere:
        return _nothing
    context.need(AsyncProxy)
    return lambda machine: machine.part(AsyncProxy).fence(Warps(machine).index)


def _decode_initialized(instruction: ptx.Parsed, context: Context) -> Step:
    """Decode `fence.mbarrier_init`: makes mbarriers known, to the asynchronous proxy as well."""
    options = Options(instruction)
    options.ignore("mbarrier_init", "release", "cluster")
    options.done()
    context.need(AsyncProxy)

    def step(machine: Machine) -> None:
        within = machine.part(Mbarriers).granules()
        machine.part(AsyncProxy).fence(Warps(machine).index, within)

    return step


def _decode_grids(instruction: ptx.Parsed, context: Context) -> Step:
    """Decode `griddepcontrol`: one launch is emulated after the other."""
    options = Options(instruction)
    options.choice({"launch_dependents", "wait"})
    options.done()
    return _nothing


TABLE: Table = {
    "fence": Opcode(_decode_fence, InstructionClass.SYNCHRONIZE),
    "membar": Opcode(_decode_fence, InstructionClass.SYNCHRONIZE),
    "fence.proxy": Opcode(_decode_proxy, InstructionClass.SYNCHRONIZE),
    "membar.proxy": Opcode(_decode_proxy, InstructionClass.SYNCHRONIZE),
    "fence.mbarrier_init": Opcode(_decode_initialized, InstructionClass.SYNCHRONIZE),
    "griddepcontrol": Opcode(_decode_grids, InstructionClass.SYNCHRONIZE),
}
