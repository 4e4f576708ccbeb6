"""The Protocol through which the shared lowering asks a GPU family for its own instructions.

`targets/gpu` turns `tgpu` ops into one thread's code and knows no instruction by name; what differs
between families is behind `Machine`. Every method that returns values builds ops at the current
insertion point and location (MLIR's context managers), at the `machine` level: named ops only.

Conventions:

- A tile is a vector of the thread's registers. In it and in memory fp8 is i8, a pointer
  `!llvm.ptr<1>`; a bool is i1 in registers and i8 in memory.
- A word is an i32. What moves between lanes is packed into words by the shared lowering.
- A predicate is an i1, or None for always. What a thread with a false predicate gets is said by
  each method.
- Element types that both vectors and element-specific hooks need are MLIR's (`ir.Type`), fp8 as its
  own type (`f8E4M3FN`), so that the hook can tell formats apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mlir import ir

from tiledsl.targets.gpu import emit
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.shared_access import SharedMemory


@dataclass(frozen=True)
class Kernel:
    """What a machine must know of a kernel before its body is lowered.

    Attributes:
        name: Its symbol.
        num_warps: Warps (waves) of a program.
        threads: `num_warps` times the machine's warp size.
        shared_bytes: Bytes of dynamic shared memory.
        sums: 32-bit registers that a thread needs for the sums of the kernel's largest product.
        more_threads: Threads behind those, which hold no tiles (`tgpu.producer`).
    """

    name: str
    num_warps: int
    threads: int
    shared_bytes: int
    sums: int = 0
    more_threads: int = 0


class Address:
    """A global address as the lowering knows it: the same base in all threads, and an offset.

    Args:
        base: `!llvm.ptr<1>`; the same in every thread of the program if `uniform`.
        offset: i32 or i64 in elements, sign-extended; None for the base itself.
        element: The type in memory that offsets count.
        uniform: Whether `base` is the same in all threads.
    """

    def __init__(
        self, base: ir.Value, offset: ir.Value | None, element: ir.Type, uniform: bool
    ) -> None:
        self.base = base
        self.offset = offset
        self.element = element
        self.uniform = uniform

    def pointer(self) -> ir.Value:
        """Return the address as one pointer, building the addition."""
        if self.offset is None:
            return self.base
        return emit.gep(self.base, self.offset, self.element)


@dataclass(frozen=True)
class Hints:
    """How an access should treat caches; the fields are those of `tile.load` and `tile.store`."""

    cache: str = ""
    eviction: str = ""
    volatile: bool = False


PLAIN = Hints()

Fragment = Any
"""A machine's own form of one matrix instruction's operand: a vector, or words."""


class Machine(Protocol):
    """One chip of one GPU family."""

    # Facts.

    @property
    def warp_size(self) -> int:
        """Threads of a warp (wave)."""
        ...

    @property
    def memory(self) -> SharedMemory:
        """The banks of its shared memory."""
        ...

    @property
    def table(self) -> Table[Instruction]:
        """Its matrix instructions, to find what `tgpu.mma` names."""
        ...

    @property
    def max_access_bytes(self) -> int:
        """The widest global access of one thread."""
        ...

    def uniform(self, value: ir.Value) -> ir.Value:
        """Return an integer that is the same in all threads as what LLVM, too, takes for that."""
        ...

    def keeps_nan(self, element: ir.Type) -> bool:
        """Whether a maximum that is NaN if an operand is takes one instruction."""
        ...

    @property
    def extremes_at_once(self) -> int:
        """Of how many operands one instruction takes the maximum or minimum."""
        ...

    @property
    def matrix_loads(self) -> bool:
        """Whether `load_matrices` may be asked for (`ldmatrix`)."""
        ...

    @property
    def matrix_stores(self) -> bool:
        """Whether `store_matrices` may be asked for (`stmatrix`)."""
        ...

    @property
    def handlers(self) -> Mapping[str, Any]:
        """How the family lowers ops that no other has, by name: `lowering.Handler`s."""
        ...

    # The kernel as a whole.

    def function_attributes(self, kernel: Kernel) -> dict[str, ir.Attribute]:
        """Return the attributes of the kernel's `llvm.func`: convention, threads, registers."""
        ...

    def declare(self, kernel: Kernel) -> None:
        """Build what the module needs beside the function (shared memory's global); at its top."""
        ...

    def shared_base(self) -> ir.Value:
        """Return the start of the program's shared memory, `!llvm.ptr<3>`."""
        ...

    # Where a thread is.

    def thread_id(self, threads: int | None = None) -> ir.Value:
        """Return this thread's number in the program, i32, and how many there are if known."""
        ...

    def program_id(self, axis: int) -> ir.Value:
        """Return the program's index along an axis of the grid, i32."""
        ...

    def num_programs(self, axis: int) -> ir.Value:
        """Return the grid's size along an axis, i32."""
        ...

    # Threads together.

    def barrier(
        self, memory: str, *, proxy: bool, threads: int | None = None, cluster: bool = False
    ) -> None:
        """All threads of the program meet; `memory` ("shared", "all") accesses become visible.

        With `proxy` they do to instructions too that read shared memory by themselves. With
        `threads` only the first so many meet, of a kernel that has more; with `cluster` those of
        all blocks that run the program.
        """
        ...

    def in_place(self) -> AbstractContextManager[None]:
        """Return the context in which loads are built that are to be done where they stand.

        Nothing of them is done before what precedes, and no access of shared memory that follows
        before they are on their way.
        """
        ...

    def warp_barrier(self) -> None:
        """The threads of a warp meet, shared memory accesses become visible to one another."""
        ...

    def shuffle_xor(self, word: ir.Value, mask: int) -> ir.Value:
        """Return the word of the lane whose number differs in the bits of `mask`."""
        ...

    @property
    def orders_products(self) -> bool:
        """Whether what assembles the code puts matrix instructions into an order of its own."""
        ...

    @property
    def permutes_bytes(self) -> bool:
        """Whether `permute_bytes` may be asked for."""
        ...

    def permute_bytes(
        self,
        first: ir.Value,
        second: ir.Value,
        order: Sequence[int],
        *,
        where: ir.Value | None = None,
        otherwise: Sequence[int] = (),
    ) -> ir.Value:
        """Return a word of four bytes of two words.

        Args:
            first: Bytes 0 to 3.
            second: Bytes 4 to 7; may be the same word.
            order: Numbers of bytes, for the lowest byte first.
            where: Where to take that order (an i1); None for everywhere.
            otherwise: The order elsewhere.
        """
        ...

    def shuffle_index(self, word: ir.Value, lane: ir.Value) -> ir.Value:
        """Return the word of the lane with the number `lane` (i32, may differ in each lane)."""
        ...

    # Global memory. `type_` is a vector whose elements lie one after another.

    def load(
        self,
        type_: ir.Type,
        address: Address,
        alignment: int,
        hints: Hints,
        predicate: ir.Value | None,
        other: ir.Value | None,
    ) -> ir.Value:
        """Read a vector (a power of two of at most `max_access_bytes` bytes), without a branch.

        Args:
            type_: A vector of a type in memory (no i1, no fp8).
            address: Of its first element.
            alignment: Bytes that the address is a multiple of; at least the vector's size.
            hints: Caches.
            predicate: Where false nothing is read.
            other: What is returned then (of `type_`); None where that may be anything.
        """
        ...

    def store(
        self,
        value: ir.Value,
        address: Address,
        alignment: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """Write a vector, as `load` reads one."""
        ...

    def has_atomic(self, kind: str, element: ir.Type) -> bool:
        """Whether `atomic_rmw` takes this kind (of `tile.RMW`) for this element type.

        Where it does not, the shared lowering uses another kind or a compare-and-swap loop. "add",
        "max", "min", "umax", "umin", "and", "or", "xor", "xchg" of i32 and i64 are always asked of
        the machine.
        """
        ...

    def atomic_rmw(
        self,
        kind: str,
        address: Address,
        value: ir.Value,
        sem: str,
        scope: str,
        predicate: ir.Value | None,
        *,
        used: bool,
    ) -> ir.Value:
        """Update one element atomically; return the old value, 0 where the predicate is false.

        The value returned may be anything if not `used`.
        """
        ...

    def atomic_cas(
        self,
        address: Address,
        compare: ir.Value,
        value: ir.Value,
        sem: str,
        scope: str,
        predicate: ir.Value | None,
    ) -> ir.Value:
        """Compare and swap an i32 or i64; return the old value, 0 where the predicate is false."""
        ...

    # Global to shared memory without registers; asked for only where the pipeline made such copies.

    def async_copy(
        self,
        shared: ir.Value,
        address: Address,
        size: int,
        hints: Hints,
        predicate: ir.Value | None,
    ) -> None:
        """Begin copying `size` bytes (4, 8 or 16); zeros where the predicate is false."""
        ...

    def async_commit(self) -> None:
        """Close the current group of copies."""
        ...

    def async_wait(self, pending: int) -> None:
        """Wait until at most `pending` groups of this thread are in flight."""
        ...

    # Matrices.

    def load_matrices(self, shared: ir.Value, count: int, transposed: bool) -> list[ir.Value]:
        """Read `count` 8 x 8 matrices of 16-bit elements (`ldmatrix`): a word of each."""
        ...

    def store_matrices(self, shared: ir.Value, words: Sequence[ir.Value], transposed: bool) -> None:
        """Write as many matrices as there are words (`stmatrix`)."""
        ...

    def mma_fragment(self, instruction: Instruction, value: ir.Value) -> Fragment:
        """Return one instruction's a, b or accumulator in the form that `mma` takes.

        It is made once, however many instructions use it.

        Args:
            instruction: The table's entry.
            value: The vector of the registers of one k step (or of the accumulator); fp8 as i8.
        """
        ...

    def mma(
        self,
        instruction: Instruction,
        a: Fragment,
        b: Fragment,
        acc: Fragment,
        unsigned: tuple[bool, bool],
    ) -> Fragment:
        """Return acc + a @ b of one hardware instruction, in the form of `acc`.

        Args:
            instruction: The table's entry, not swapped: where the product is swapped, the caller
                has exchanged a and b.
            a: From `mma_fragment`.
            b: From `mma_fragment`.
            acc: From `mma_fragment` or an earlier `mma`.
            unsigned: Whether integer a and b are unsigned.
        """
        ...

    def mma_result(self, instruction: Instruction, sums: Sequence[Fragment]) -> ir.Value:
        """Return accumulators as one vector, one after another."""
        ...

    # Arithmetic.

    def cast(self, value: ir.Value, source: ir.Type, result: ir.Type, signed: bool) -> ir.Value:
        """Return `value` cast as `tile.cast` defines it (or `arith.extf`, where fp8 is involved).

        Args:
            value: A scalar or a vector of `source` (fp8 as i8).
            source: Its element type.
            result: The element type wanted (fp8 is returned as i8).
            signed: Whether an integer result is signed.
        """
        ...

    def native(self, op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
        """Return this `arith` or `math` op's result by an instruction of the chip's own.

        None where the op itself, on vectors, is what LLVM should get. `operands` are scalars or
        vectors, lowered already; the flags (`fastmath`) stand on `op`.
        """
        ...

    # Debugging.

    def print_line(self, format: str, arguments: Sequence[ir.Value]) -> None:
        """Print by a C format string; the arguments are i32, i64 and f64."""
        ...

    def stop(self, message: str) -> None:
        """End the program with a message. Built under a condition."""
        ...
