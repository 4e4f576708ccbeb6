"""What a family of instructions is made of: opcodes, their modifiers, and ends of blocks.

A family is a module with a `TABLE` from opcodes to `Opcode`s. `decode` looks an instruction such as
`add.rn.ftz.f32` up as it is, then under its stem and last modifier (`add.f32`), then under each of
its prefixes, the longest first (`add.rn.ftz`, `add.rn`, `add`). The `Opcode`'s decoder returns a
`Step`, or an `Ending` where control may go elsewhere or a group may have to wait.

A decoder takes every modifier that it understands from an `Options` and calls `done`: what is left
is an instruction that the emulator does not know, and that is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.program import End, InstructionClass, Step
from tiledsl.targets.nvptx.emulator.text import Parsed

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.operands import Context


@dataclass(frozen=True)
class Place:
    """Where an `Ending` stands, once all blocks are known.

    Attributes:
        block: The block that it ends.
        following: The block after it.
        labels: The block of each label.
    """

    block: int
    following: int
    labels: Mapping[str, int]


@dataclass(frozen=True)
class Ending:
    """An instruction that ends its basic block.

    Attributes:
        build: Makes the `End`. It acts on the machine's active threads and returns the block
            where they all go on, or None after telling the scheduler about each of them.
        alone: Whether its block holds nothing else, so that units that have to wait *before* it
            can be parked at its own block and do it again (see `convergence`).
    """

    build: Callable[[Place], End]
    alone: bool = False


Decoder = Callable[[Parsed, "Context"], Step | Ending]


@dataclass(frozen=True)
class Opcode:
    """How an opcode is decoded, and what it counts as."""

    decode: Decoder
    kind: InstructionClass


Table = Mapping[str, Opcode]


def unknown(instruction: Parsed, why: str = "") -> CompilerBug:
    """Return the error for an instruction that the emulator cannot execute."""
    reason = f": {why}" if why else ""
    return CompilerBug(f"the PTX emulator does not know `{instruction.text}`{reason}")


class Options:
    """The modifiers of one instruction, taken one after the other."""

    def __init__(self, instruction: Parsed) -> None:
        self._instruction = instruction
        self._left = instruction.modifiers

    def flag(self, name: str) -> bool:
        """Take a modifier; says whether it was there."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def any_of(self, names: Collection[str]) -> bool:
        """Say whether any of some modifiers is there, and leave it."""
        return any(name in names for name in self._left)

    def choice(self, names: Collection[str], default: str | None = None) -> str:
        """Take the first modifier that is among some.

        Raises:
            CompilerBug: There is none, and no default.
        """
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        if default is None:
            raise unknown(self._instruction, f"expected one of {', '.join(sorted(names))}")
        return default

    def last(self, names: Collection[str]) -> str:
        """Take the last modifier, which must be among some (a type, nearly always)."""
        if not self._left or self._left[-1] not in names:
            raise unknown(self._instruction, f"expected it to end in one of {sorted(names)}")
        return self._left.pop()

    def ignore(self, *names: str) -> None:
        """Take modifiers that change nothing here, where they are there."""
        self._left = [one for one in self._left if one not in names]

    def ignore_prefixes(self, *prefixes: str) -> None:
        """Take modifiers that begin in some way and change nothing here."""
        self._left = [one for one in self._left if not one.startswith(prefixes)]

    def done(self) -> None:
        """Require that nothing is left."""
        if self._left:
            raise unknown(self._instruction, f"modifier .{self._left[0]}")
