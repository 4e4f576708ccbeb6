"""What a target's table of matrix instructions holds: the contract between its data and our passes.

A target lists its chip's instructions as `Instruction`s, best first; `select_mma` takes the first
that fits a dot's types and shape, and the lowering finds it again by the name that `tgpu.mma`
carries. A target may subclass `Instruction` to keep beside it what its lowering needs.

Element types are written as MLIR prints them ("f16", "bf16", "f32", "f64", "i8", "i32",
"f8E4M3FN", "f8E5M2").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, TypeVar

from tiledsl.dialects.layout_mma import Fragments

Precision = Literal["ieee", "tf32"]
SWAPPED = ".swapped"


@dataclass(frozen=True, eq=False)
class Instruction:
    """One matrix instruction, or a run of them along k that share wide loads.

    Attributes:
        name: Unique in its table; without ".swapped", which `swap` appends.
        a: Element type of a.
        b: Element type of b.
        acc: Element type of the accumulator.
        fragments: Which lane holds what. Several entries may give one hardware instruction with
            different `kwidth`s, under different names: the wide one first, for tiles deep enough.
        precision: "tf32" where f32 operands are rounded to fewer bits before they multiply.
        unsigned: Whether integer operands may each be unsigned as well as signed.
        turns: Where operands are read in shared memory: whether that memory may hold them with m or
            n contiguous; else k must be.
    """

    name: str
    a: str
    b: str
    acc: str
    fragments: Fragments
    precision: Precision = "ieee"
    unsigned: bool = False
    turns: bool = False

    @property
    def from_shared(self) -> bool:
        """Whether it reads b, and may read a, in shared memory."""
        return self.fragments.b is None

    @property
    def cuts(self) -> bool:
        """Whether it cuts operands to tf32, so that they must be rounded before."""
        return self.precision == "tf32" and self.from_shared

    @property
    def m(self) -> int:
        """Rows of the accumulator (as this entry uses it: swapped where `fragments` is)."""
        return self.fragments.acc.shape[0]

    @property
    def n(self) -> int:
        """Columns of the accumulator."""
        return self.fragments.acc.shape[1]

    @property
    def k(self) -> int:
        """Depth of one instruction."""
        return self.fragments.a.shape[1] // self.fragments.k_steps

    @property
    def depth(self) -> int:
        """The least depth of a tile: `k` times the instructions that share a load."""
        return self.fragments.a.shape[1]

    def swap(self) -> Instruction:
        """Return this instruction computing the transposed product, under its swapped name.

        Raises:
            ValueError: b comes from shared memory.
        """
        name = self.name.removesuffix(SWAPPED)
        if not self.name.endswith(SWAPPED):
            name += SWAPPED
        return replace(self, name=name, a=self.b, b=self.a, fragments=self.fragments.swap())


I = TypeVar("I", bound=Instruction)  # noqa: E741


class Table(Generic[I]):
    """A chip's matrix instructions, best first; `Table(())` is a chip without any."""

    def __init__(self, instructions: Sequence[I]) -> None:
        self.instructions = tuple(instructions)

    @cached_property
    def _by_name(self) -> dict[str, I]:
        found = {entry.name: entry for entry in self.instructions}
        if len(found) != len(self.instructions):
            raise ValueError("expected every instruction of a table to have a name of its own")
        return found

    def entry(self, name: str) -> I:
        """Return the entry that `tgpu.mma` means by `name`, as the target wrote it.

        Raises:
            KeyError: The table has none of that name.
        """
        return self._by_name[name.removesuffix(SWAPPED)]

    def fragments(self, name: str) -> Fragments:
        """Return the fragments that `tgpu.mma` means by `name`: swapped where the name says so."""
        entry = self.entry(name)
        return entry.fragments.swap() if name.endswith(SWAPPED) else entry.fragments

    def matching(
        self, a: str, b: str, acc: str, precision: str, unsigned: bool
    ) -> Iterator[Instruction]:
        """Yield what multiplies these types at least as precisely, best first.

        An entry comes as it is and then swapped, the other way round where that suits the tile.
        """
        wanted = ("tf32", "ieee") if precision == "tf32" else ("ieee",)
        for level in wanted:
            for entry in self.instructions:
                if entry.precision != level or (unsigned and not entry.unsigned):
                    continue
                if (entry.a, entry.b, entry.acc) == (a, b, acc):
                    yield entry
                if entry.fragments.b is not None and (entry.b, entry.a, entry.acc) == (a, b, acc):
                    yield entry.swap()
