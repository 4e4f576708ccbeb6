"""A decoded kernel: basic blocks of steps, made once and executed many times.

A vendor's decoder turns each instruction into a `Step`, a closure that was given its registers and
constants at decoding and at run time only gets the machine. A basic block ends where control may
leave or where a group may have to wait (branches, barriers, collectives that need other threads):
the `End` of the block decides where its group goes. So nothing inside a block needs scheduling,
and the loop over its steps is the whole cost of control.

Invariants: a step never changes which units are in the machine's group; blocks are numbered in the
order of the text, which the scheduler takes for the order of the program (the group that is
furthest behind runs first); `Instruction.index` counts the kernel's instructions from 0 and is what
findings and counters are filed under.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tiledsl.targets.gpu.source_lines import Source


class InstructionClass(Enum):
    """What the report counts instructions by."""

    INTEGER = "integer arithmetic"
    FLOAT = "float arithmetic"
    CONVERT = "conversion"
    MATRIX = "matrix"
    GLOBAL = "global memory"
    SHARED = "shared memory"
    LOCAL = "private memory"
    ATOMIC = "atomic"
    COPY = "asynchronous copy"
    EXCHANGE = "exchange between lanes"
    SYNCHRONIZE = "barrier, fence or wait"
    CONTROL = "control flow"
    MOVE = "move and select"
    SCALAR = "scalar"
    SCALAR_MEMORY = "scalar memory"
    HINT = "hint on time"


@dataclass(frozen=True)
class Instruction:
    """One instruction of the text.

    Attributes:
        index: Its number in the kernel, from 0.
        text: As it stands, without its comment.
        kind: What it counts as.
        source: The author's line it comes from, where the text says.
        strong: Whether it is an access that goes past the caches that programs do not share, so
            that nothing needs to order it with other programs' accesses.
    """

    index: int
    text: str
    kind: InstructionClass
    source: Source | None = None
    strong: bool = False


Step = Callable[[Any], None]
"""Executes one instruction for the machine's current group (the vendor's machine class)."""

End = Callable[[Any], "int | None"]
"""Ends a block: the number of the block where the whole group goes on, or None where it told the
scheduler what becomes of its units (`Scheduler.go`, `.park`, `.exit`)."""


@dataclass
class BasicBlock:
    """Instructions that a group executes without a pause.

    Attributes:
        steps: What to run, in order.
        end: Where the group goes then.
        instructions: All of them, the one that ends the block too, for counting.
        label: Its label in the text, or "".
    """

    steps: Sequence[Step]
    end: End
    instructions: Sequence[Instruction] = field(default_factory=list[Instruction])
    label: str = ""
