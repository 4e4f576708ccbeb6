"""See what the instructions of a decoded AMDGPU kernel change: its waits, choices, writes to exec."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.kernels.mutants import EXEC_FORM, WAIT_FORM
from tiledsl.targets.gpu.emulator.launch import Program


class Watch:
    """Watch a program of AMD's run: what its waits, choices and writes to exec change.

    Attributes:
        idle: Instructions that have changed nothing so far.
        stores: Waits that have completed nothing but stores to global memory so far.
    """

    def __init__(self, program: Program) -> None:
        """Put a watch on each of a decoded program's steps that may be idle."""
        self.idle: set[int] = set()
        self.stores: set[int] = set()
        self._completed: dict[int, int] = {}
        self._lds: set[int] = set()
        self._program = program
        for block in program.blocks:
            guarded: list[Any] = getattr(block, "guarded", [])
            for position, (step, registers, instruction) in enumerate(guarded):
                watched = self._watching(step, instruction)
                if watched is not None:
                    self.idle.add(instruction.index)
                    guarded[position] = watched, registers, instruction

    def _watching(self, step: Any, instruction: Any) -> Any:
        index = instruction.index
        if re.match(WAIT_FORM, instruction.text):
            self.stores.add(index)
            return self._wait(step, index)
        if re.match(EXEC_FORM, instruction.text):
            return self._changing(step, index, lambda machine: machine._exec.tobytes())
        choice = re.match(r"v_cndmask_b32\w* v(\d+),", instruction.text)
        if choice is not None:
            register = int(choice[1])
            return self._changing(step, index, lambda machine: machine.vgpr[register].tobytes())
        return None

    def _changing(self, step: Any, index: int, look: Callable[[Any], bytes]) -> Any:
        def watched(machine: Any) -> None:
            before = look(machine)
            step(machine)
            if look(machine) != before:
                self.idle.discard(index)

        return watched

    def _wait(self, step: Any, index: int) -> Any:
        self._completed[index] = 0

        def watched(machine: Any) -> None:
            operations = machine.memory.waits._operations
            before = [(one, int(one.waiting.sum())) for one in operations]
            step(machine)
            for one, waiting in before:
                if int(one.waiting.sum()) == waiting:
                    continue
                self.idle.discard(index)
                self._completed[index] |= one.registers
                if one.time is not None:
                    self._lds.add(index)
                if one.registers or one.time is not None:
                    self.stores.discard(index)

        return watched

    def unused(self, executed: set[int]) -> set[int]:
        """Return the waits for what no executed instruction names that can come after them."""
        blocks: list[Any] = list(self._program.blocks)
        live = {n for n, one in enumerate(blocks) if {i.index for i in one.instructions} & executed}
        found: set[int] = set()
        for number in live:
            after = self._reached(blocks, live, number)
            later = 0
            for other in after:
                later |= _named(blocks[other])
            for _, registers, instruction in reversed(blocks[number].guarded):
                completed = self._completed.get(instruction.index)
                own = blocks[number].end_registers | later
                if completed is not None and not completed & own:
                    found.add(instruction.index)
                later |= registers
        return found - self.idle - self._lds

    def lds_stores(self) -> set[int]:
        """Return the waits that have completed stores to LDS and no loads."""
        return {index for index in self._lds if not self._completed[index]}

    @staticmethod
    def _reached(blocks: Sequence[Any], live: set[int], start: int) -> set[int]:
        """Return the blocks among `live` that may be executed after one."""
        labels = {one.label: number for number, one in enumerate(blocks) if one.label}
        reached: set[int] = set()
        left = [start]
        while left:
            number = left.pop()
            text = blocks[number].instructions[-1].text if blocks[number].instructions else ""
            branch = re.match(r"s_c?branch\w* (\S+)", text)
            following = [labels[branch[1]]] if branch is not None else []
            if not re.match(r"s_(branch|endpgm)", text):
                following.append(number + 1)
            new = (set(following) & live) - reached
            reached |= new
            left.extend(new)
        return reached


def _named(block: Any) -> int:
    """Return the registers that a block's instructions name."""
    registers: int = block.end_registers
    for _, one, _ in block.guarded:
        registers |= one
    return registers
