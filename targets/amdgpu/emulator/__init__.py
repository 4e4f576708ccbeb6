"""Execute AMDGPU assembly on the CPU: decode a text once, run cohorts of workgroups with NumPy.

`load` makes a `Program` (see `targets.gpu.emulator.launch`) of what LLVM printed. The parts, in
order of imports: `text` reads, `decode` makes basic blocks of what the families' tables say,
`operands` reads and writes registers, `machine` holds them; the families are a module each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.assertions import messages
from tiledsl.targets.amdgpu.chips import chip as find_chip
from tiledsl.targets.amdgpu.emulator.decode import Code, Context, Launch, decode_blocks
from tiledsl.targets.amdgpu.emulator.global_memory import swaps
from tiledsl.targets.amdgpu.emulator.machine import Machine
from tiledsl.targets.amdgpu.emulator.memory_units import granule
from tiledsl.targets.amdgpu.emulator.sections import Module, parse_module
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.counters import CDNA4_READ_16, CDNA_READ_16, Rules
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction, InstructionClass


@dataclass(frozen=True)
class Program:
    """A decoded kernel."""

    code: Code

    @property
    def warp_size(self) -> int:
        """Lanes a wave."""
        return self.code.wave_size

    @property
    def blocks(self) -> Sequence[BasicBlock]:
        """The basic blocks, the entry first."""
        return self.code.blocks

    @property
    def instructions(self) -> Sequence[Instruction]:
        """Every instruction, by index."""
        return self.code.instructions

    @property
    def rules(self) -> Rules:
        """How the chip's memory costs are counted."""
        if self.code.chip.matrix == "wmma":
            return Rules(sector_bytes=128)
        if self.code.chip.name == "gfx950":
            wide = Rules(sector_bytes=64, banks=64, phase_bytes=256, read_16=CDNA4_READ_16)
            return replace(wide, writes_halved=True)
        return Rules(sector_bytes=64, read_16=CDNA_READ_16)

    @property
    def atomic(self) -> bool:
        """Whether it has atomics on global memory."""
        return any(
            one.kind is InstructionClass.ATOMIC and not one.text.startswith("ds_")
            for one in self.code.instructions
        )

    @property
    def cluster(self) -> tuple[int, int, int]:
        """Workgroups of a cluster along each axis: there are none."""
        return (1, 1, 1)

    @property
    def static_shared_bytes(self) -> int:
        """LDS a workgroup that the code itself has."""
        return self.code.lds_bytes

    def machine(self, cohort: Cohort) -> Machine:
        """Return what runs one cohort."""
        return Machine(self.code, cohort)


def load(text: str, entry: str, chip: str, memory: GlobalMemory) -> Program:
    """Decode a kernel, and place its module's constants in memory.

    Args:
        text: AMDGPU assembly as LLVM prints it.
        entry: The kernel's name.
        chip: What it was compiled for.
        memory: The device's memory.

    Raises:
        CompilerBug: The text has an instruction that is not known.
    """
    module = parse_module(text)
    if entry not in module.kernels:
        raise CompilerBug(f"AMDGPU assembly has no kernel {entry!r}, only {list(module.kernels)}")
    values = _integers(module.kernels[entry])
    found = find_chip(chip)
    wave_size = 32 if values.get("wavefront_size32", 0) else 64
    mode = _mode(values)
    if mode & 15:
        raise CompilerBug("the AMDGPU emulator rounds to nearest even only")
    varies = any(isinstance(one, Parsed) and one.stem in _MODE_WRITERS for one in module.code)
    context = Context(found, wave_size, mode, varies, _place_data(module, memory))
    context.swaps = swaps(module.code)
    context.assertions = messages((one.name, bytes(one.content)) for one in module.data)
    blocks, instructions, parsed = decode_blocks(module, entry, context)
    code = Code(
        found, wave_size, mode, values.get("group_segment_fixed_size", 0), granule(parsed),
        values.get("private_segment_fixed_size", 0), _launch(values, context.generation),
        blocks, instructions, parsed,
    )  # fmt: skip
    return Program(code)


_MODE_WRITERS = ("s_setreg_b32", "s_setreg_imm32_b32", "s_round_mode", "s_denorm_mode")


def _integers(values: dict[str, str]) -> dict[str, int]:
    """Return those values of a descriptor that are numbers; counts of registers may not be."""
    return {name: int(value, 0) for name, value in values.items() if value[:1].isdigit()}


def _mode(values: dict[str, int]) -> int:
    """Return what MODE starts with."""
    fields = ("round_mode_32", "round_mode_16_64", "denorm_mode_32", "denorm_mode_16_64")
    defaults = (0, 0, 0, 3)
    return sum(
        values.get(f"float_{name}", default) << 2 * place
        for place, (name, default) in enumerate(zip(fields, defaults, strict=True))
    )


_USER_REGISTERS = (
    ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2), ("dispatch_id", 2), ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)  # fmt: skip
"""What a kernel may ask for in scalar registers from s0 on, in this order: name and how many."""


def _launch(values: dict[str, int], generation: int) -> Launch:
    """Return what the registers start with, from the kernel's descriptor."""
    places: dict[str, int] = {}
    register = 0
    for name, count in _USER_REGISTERS:
        if values.get(f"user_sgpr_{name}", 0):
            places[name] = register
            register += count
    unknown = places.keys() - {"private_segment_buffer", "kernarg_segment_ptr", "dispatch_ptr"}
    if unknown or values.get("user_sgpr_kernarg_preload_length", 0):
        raise CompilerBug(f"the AMDGPU emulator does not provide {sorted(unknown)} to kernels")
    register = max(values.get("user_sgpr_count", 0), register)
    ids: list[tuple[int, int]] = []
    trap_ids = generation >= 12
    if not trap_ids:
        for axis, letter in enumerate("xyz"):
            if values.get(f"system_sgpr_workgroup_id_{letter}", axis == 0):
                ids.append((register, axis))
                register += 1
        register += values.get("system_sgpr_workgroup_info", 0)
    offset = values.get("system_sgpr_private_segment_wavefront_offset", 0)
    return Launch(
        arguments=places.get("kernarg_segment_ptr"),
        dispatch=places.get("dispatch_ptr"),
        workgroup_ids=tuple(ids),
        trap_ids=trap_ids,
        private_buffer=places.get("private_segment_buffer"),
        wave_offset=register if offset else None,
    )


def _place_data(module: Module, memory: GlobalMemory) -> dict[str, int]:
    """Allocate the module's data, and a table of their addresses for code that looks there."""
    symbols: dict[str, int] = {}
    for one in module.data:
        address = memory.allocate(len(one.content), written=True)
        memory.bytes_at(address, len(one.content))[:] = np.frombuffer(one.content, np.uint8)
        symbols[one.name] = address
    for name, target in tuple(symbols.items()):
        address = memory.allocate(8, written=True)
        memory.bytes_at(address, 8)[:] = np.array([target], np.uint64).view(np.uint8)
        symbols[f"{name}@got"] = address
    return symbols
