"""What an emulated kernel did wrong, each kind of fault once an instruction.

A finding is filed under its kind and the instruction that did it, with the first place (block and
thread) where it happened and how often in all; the run goes on where it can (a lane that reads out
of bounds reads 0, one that writes there writes nothing), so that one run shows every fault. At the
end the launch raises a `KernelError` for them, or warns (`Findings.raise_or_warn`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tiledsl.dialects.diagnostics import KernelError, Span
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.gpu.expressions import expression_at


class Kind(Enum):
    """The kinds of fault."""

    OUT_OF_BOUNDS = "out-of-bounds access"
    UNINITIALIZED = "read of memory that nothing wrote"
    RACE = "data race"
    MISSING_WAIT = "missing wait"
    MISALIGNED = "misaligned access"
    DEADLOCK = "deadlock"
    ENDLESS = "endless loop"
    DIVERGENT_BARRIER = "divergent barrier"
    ASSERTION = "failed device_assert"
    UNDEFINED = "undefined behaviour"


@dataclass(frozen=True)
class Finding:
    """One kind of fault of one instruction.

    Attributes:
        kind: What is wrong.
        message: What happened the first time, in full.
        instruction: The instruction that did it.
        block: The program ids of the first block where it happened.
        thread: The first thread of that block, or None where it concerns them all.
        times: How many lanes did it, in all.
        other: The instruction that it conflicts with, of a race whose other side is known.
    """

    kind: Kind
    message: str
    instruction: Instruction
    block: tuple[int, int, int] | None = None
    thread: int | None = None
    times: int = 1
    other: Instruction | None = None

    def __str__(self) -> str:
        source = self.instruction.source
        where = f"{source.file}:{source.line}: " if source is not None else ""
        return f"{where}{self.summary()}"

    def summary(self) -> str:
        """Return what, who, how often and by which instruction, without the source line."""
        place = "" if self.block is None else f" in program {self.block}"
        if self.thread is not None:
            place += f", thread {self.thread}"
        often = f" ({self.times} times)" if self.times > 1 else ""
        return f"{self.kind.value}: {self.message}{place}{often}; `{self.instruction.text}`"

    def span(self) -> Span | None:
        """Return the author's expression that the instruction comes from, if the text says."""
        return _span(self.instruction)

    def other_span(self) -> Span | None:
        """Return the expression of the other side of a race, if that is another one."""
        other = None if self.other is None else _span(self.other)
        return None if other == self.span() else other


def _span(instruction: Instruction) -> Span | None:
    source = instruction.source
    return None if source is None else expression_at(source.file, source.line, source.column)


def by_instruction(instruction: Instruction | None) -> str:
    """Return the words that say where an access comes from: its line and its text."""
    if instruction is None:
        return ""
    line = "" if instruction.source is None else f" at line {instruction.source.line}"
    return f"{line} (`{instruction.text}`)"


_SHOWN = 8
"""Findings that an error shows besides the first."""


class Findings:
    """The findings of one launch."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, int], Finding] = {}

    def __len__(self) -> int:
        return len(self._found)

    @property
    def endless(self) -> bool:
        """Whether a loop was found that has no end."""
        return any(kind is Kind.ENDLESS for kind, _ in self._found)

    def add(self, finding: Finding) -> None:
        """File a finding; one of the same kind and instruction only counts."""
        key = finding.kind, finding.instruction.index
        known = self._found.get(key)
        if known is None:
            self._found[key] = finding
        else:
            self._found[key] = replace(known, times=known.times + finding.times)

    def all(self) -> Sequence[Finding]:
        """Return them in the order of the program."""
        return sorted(self._found.values(), key=lambda one: one.instruction.index)

    def merge(self, others: Sequence[Finding]) -> None:
        """Add what another process found."""
        for finding in others:
            self.add(finding)

    def raise_or_warn(self, kernel: str, warn: bool) -> None:
        """Raise a `KernelError` that shows them, or warn with the same text; nothing if none.

        Raises:
            KernelError: There are findings and `warn` is false.
        """
        if not self._found:
            return
        first, *others = self.all()
        notes: list[tuple[str, Span]] = []
        message = f"kernel `{kernel}`: {first.summary()}"
        conflicting = first.other_span()
        if conflicting is not None:
            notes.append(("the other access", conflicting))
        for other in others[:_SHOWN]:
            span = other.span()
            if span is None:
                message += f"\n  {other.summary()}"
            else:
                notes.append((other.summary(), span))
        if len(others) > _SHOWN:
            message += f"\n  and {len(others) - _SHOWN} more"
        error = KernelError(message, first.span(), notes=tuple(notes))
        if not warn:
            raise error
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
