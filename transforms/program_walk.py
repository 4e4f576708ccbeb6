"""Walk a kernel the ways that it can go, with what may have happened so far.

Analyses of order (which barrier, wait or fence must stand where) go over the ops in program order
with a *state*, join states where ways meet, and go round loops until nothing changes. The walk is
here; what an op does to a state is theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, Protocol, Self, TypeVar

from mlir import ir


class Flow(Protocol):
    """A state; a value that compares equal to what says the same."""

    def joined(self, other: Self) -> Self:
        """Give what may have happened on either of two ways."""
        ...

    def entering(self, loop: ir.Operation) -> Self:
        """Restate the state before a loop for its first trip."""
        ...

    def next_trip(self, loop: ir.Operation) -> Self:
        """Restate the state at the end of a trip for the next one."""
        ...

    def leaving(self, loop: ir.Operation) -> Self:
        """Restate the state at the end of a loop's last trip for what follows."""
        ...


S = TypeVar("S", bound=Flow)


class ProgramWalk(ABC, Generic[S]):
    """A walk; subclasses say what ops do.

    States may only grow with what flows in, and have finitely many values, or loops do not end.
    """

    @abstractmethod
    def op(self, op: ir.OpView, state: S) -> S:
        """Give the state after an op that is no control flow."""

    def block(self, block: ir.Block, state: S) -> S:
        """Walk a block and give the state at its end."""
        for name, op in self.ops_of(block):
            match name:
                case "scf.for":
                    state = self.loop(op.operation, state)
                case "scf.while":
                    state = self._while(op.operation, state)
                case "scf.if":
                    state = self._if(op.operation, state)
                case _:
                    state = self.op(op, state)
        return state

    def ops_of(self, block: ir.Block) -> Iterable[tuple[str, ir.OpView]]:
        """Give a block's ops, with their names; those that change no state may be left out."""
        return ((op.operation.name, op) for op in block.operations)

    def loop(self, op: ir.Operation, state: S) -> S:
        """Walk an `scf.for`."""
        return self.trips(op, state)

    def trips(self, op: ir.Operation, state: S) -> S:
        """Walk the trips of an `scf.for` until another changes nothing."""
        entry = state.entering(op)
        while True:
            end = self.block(op.regions[0].blocks[0], entry)
            merged = entry.joined(end.next_trip(op))
            if merged == entry:
                return end.leaving(op).joined(state)
            entry = merged

    def _if(self, op: ir.Operation, state: S) -> S:
        ends = [self.block(region.blocks[0], state) for region in op.regions if len(region.blocks)]
        if len(ends) < 2:
            ends.append(state)
        return ends[0].joined(ends[1])

    def _while(self, op: ir.Operation, state: S) -> S:
        entry = state
        while True:
            decided = self.block(op.regions[0].blocks[0], entry)
            end = self.block(op.regions[1].blocks[0], decided)
            merged = entry.joined(end.next_trip(op))
            if merged == entry:
                return decided.leaving(op)
            entry = merged
