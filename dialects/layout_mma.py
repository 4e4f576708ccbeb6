"""Layouts of the operands and results of matrix instructions.

A matrix instruction fixes which lane holds which element of its small a (m x k), b (k x n) and
accumulator (m x n) tiles. `Fragments` holds those three layouts; the constructors below give them
for each family of instructions from its few parameters, so that a target's instruction table stays
data. `tile_fragment` repeats an instruction over a whole tile and its warps.

Invariants that lowering relies on:

- Register order: the registers of one instruction are contiguous, so instruction i of a tile works
  on registers [i * f, (i + 1) * f). Instructions count along n, then m in accumulators; along k,
  then m in a; along k, then n in b. So with counts M, N, K of instructions, accumulator (i, j) is
  `i * N + j`, operand a (i, kk) is `i * K + kk`, operand b (j, kk) is `j * K + kk`.
- Warp order: warp bits along m are the low ones, then those along n.
- Warps that a tile is too small for hold copies (zero bases), as do warps along n in a and along m
  in b.
- Which row of the tile an instruction takes for which of its own is free, as long as a and the
  accumulator agree (`Fragments.spread_rows`); of b that is so for its columns.

A product sums over k, so a and b may share any permutation of k. `kwidth` makes use of that: a lane
holds `kwidth` consecutive elements along k, which one wide load brings, and spends them on several
instructions. The numbers are those of the hardware, up to the order of the sum over k.

Sources: PTX ISA 8.7, "Matrix Fragments for mma" and "Register Fragments for wgmma"; AMD matrix
instruction calculator (ROCm/amd_matrix_instruction_calculator).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from tiledsl.dialects.layout import Basis, LinearLayout
from tiledsl.dialects.layout_f2 import IntArray, log2_exact
from tiledsl.dialects.layout_shape import broadcast_operand, broadcast_to

Operand = Literal["a", "b", "acc"]


@dataclass(frozen=True)
class Fragments:
    """The tiles of one matrix instruction, or of `k_steps` of them that share wide loads.

    Attributes:
        a: Layout of the m x k operand.
        b: Layout of the k x n operand; None if it can only come from shared memory.
        acc: Layout of the m x n accumulator.
        k_steps: Instructions along k that `a` and `b` hold the operands of.
        swapped: The hardware computes the transposed product: pass it b as its first operand and a
            as its second.
    """

    a: LinearLayout
    b: LinearLayout | None
    acc: LinearLayout
    k_steps: int = 1
    swapped: bool = False

    def layout(self, operand: Operand) -> LinearLayout:
        """Give the layout of one operand.

        Raises:
            ValueError: It is read from shared memory only.
        """
        found = {"a": self.a, "b": self.b, "acc": self.acc}[operand]
        if found is None:
            raise ValueError(f"expected an operand in registers, found {operand} in shared memory")
        return found

    def registers(self, operand: Operand) -> int:
        """Give how many elements of an operand one instruction takes from each lane."""
        held = self.layout(operand).registers
        return held if operand == "acc" else held // self.k_steps

    def tile(self, operand: Operand, shape: Sequence[int], warps: tuple[int, int]) -> LinearLayout:
        """Repeat one operand over a tile of `shape` and (m, n) warps; see `tile_fragment`."""
        return tile_fragment(self.layout(operand), tuple(shape), warps, operand)

    def counts(self, m: int, n: int, k: int, warps: tuple[int, int]) -> tuple[int, int, int]:
        """Give how many instructions each warp issues along m, n and k for an m x n x k product."""
        return (
            max(1, m // (self.acc.shape[0] * warps[0] // self.acc.warps)),
            max(1, n // (self.acc.shape[1] * warps[1])),
            k * self.k_steps // self.a.shape[1],
        )

    def spread_rows(self) -> Fragments:
        """Give the fragments of the same instruction for rows in another order.

        Bits 2 and 4 of a row change places: a warp's lanes then hold rows 0 to 3 and 16 to 19 at
        once. That is for an a of 32 bits, taken from registers, that lies in shared memory with
        rows contiguous as TMA puts it there: step kk along k has a line of 32 banks, in which the
        four rows from 4 i on lie at 4 (i ^ kk % 8). Lanes hold eight rows for four steps along k
        at once; with neighbouring rows i and kk differ in bit 0, which leaves half of the banks
        idle, and with these no two lanes share a bank.

        Raises:
            ValueError: The instruction has no such rows.
        """
        if self.a.shape[0] < 32:
            raise ValueError(f"expected at least 32 rows, found {self.a.shape[0]}")
        return replace(self, a=_spread(self.a), acc=_spread(self.acc))

    def swap(self) -> Fragments:
        """Give the fragments of the same instruction used for the transposed product.

        C = A B is also (B^T A^T)^T. Where accumulators hold columns this makes them hold rows.

        Raises:
            ValueError: b comes from shared memory.
        """
        a, b = self.layout("a"), self.layout("b")
        turned = (1, 0)
        return Fragments(
            b.transpose(turned),
            a.transpose(turned),
            self.acc.transpose(turned),
            self.k_steps,
            not self.swapped,
        )


@lru_cache(maxsize=1024)
def tile_fragment(
    fragment: LinearLayout, shape: tuple[int, ...], warps: tuple[int, int], operand: Operand
) -> LinearLayout:
    """Repeat an instruction's layout over a tile: first over warps, then in registers.

    Args:
        fragment: Layout of one instruction; its own warp bits, if any, lie along m.
        shape: The tile, perhaps with leading batch dimensions, which every warp holds whole.
        warps: Warps along m and along n.
        operand: Which operand it is.

    Raises:
        ValueError: The tile is smaller than the instruction, or there are fewer warps along m than
            the instruction spans.
    """
    batch, tile = shape[:-2], shape[-2:]
    if any(size < least for size, least in zip(tile, fragment.shape, strict=True)):
        raise ValueError(f"expected a tile of at least {fragment.shape}, found {tile}")
    if fragment.warps > warps[0]:
        raise ValueError(f"expected at least {fragment.warps} warps along m, found {warps[0]}")
    covered = list(fragment.shape)

    def grow(axis: int, limit: int) -> Basis | None:
        """Give the next basis along a dimension of the tile, None when it is covered."""
        if covered[axis] >= limit:
            return None
        basis = tuple(covered[axis] if i == axis else 0 for i in range(2))
        covered[axis] *= 2
        return basis

    nothing = (0, 0)
    m_axis, n_axis = {"a": (0, None), "b": (None, 1), "acc": (0, 1)}[operand]
    warp = list(fragment.bases["warp"])
    for axis, bits in (
        (m_axis, log2_exact(warps[0]) - len(warp)),
        (n_axis, log2_exact(warps[1])),
    ):
        for _ in range(bits):
            warp.append((None if axis is None else grow(axis, tile[axis])) or nothing)
    register = list(fragment.bases["register"])
    for axis in (0, 1) if operand == "b" else (1, 0):
        while basis := grow(axis, tile[axis]):
            register.append(basis)
    layout = LinearLayout(
        {"register": register, "lane": fragment.bases["lane"], "warp": warp}, tile
    )
    for _ in batch:
        layout = layout.expand_dims(0)
    return broadcast_to(layout, shape).layout


# NVIDIA.


def mma_sync(m: int, n: int, k: int, bits: int) -> Fragments:
    """Fragments of `mma.sync`: m16n8 of any type, and m8n8k4 of f64.

    Args:
        m: Rows, 16 or 8.
        n: Columns, 8.
        k: Depth.
        bits: Width of an element of a and b (8, 16, 32 for tf32, 64).

    Lane l is in group l / 4 and has place l % 4 in it. 32-bit registers pack `per = 32 / bits`
    elements along k; a's registers then step through rows + 8 and k + 4 * per.
    """
    per = max(1, 32 // bits)
    low_rows = _steps(0, 1, 8)
    tall = [(8, 0)] if m == 16 else []
    in_register, across = _steps(1, 1, per), _steps(1, per, 4 * per)
    a = [*in_register, *tall, *_steps(1, 4 * per, k)]
    b = [*in_register, *_steps(1, 4 * per, k)]
    turned = _turn([*across, *low_rows])
    return Fragments(
        LinearLayout({"register": a, "lane": [*across, *low_rows]}, (m, k)),
        LinearLayout({"register": _turn(b), "lane": turned}, (k, n)),
        LinearLayout({"register": [(0, 1), *tall], "lane": [(0, 2), (0, 4), *low_rows]}, (m, n)),
    )


def wgmma(n: int, k: int, bits: int) -> Fragments:
    """Fragments of `wgmma` m64nNkK: four warps along m; b always comes from shared memory.

    Args:
        n: Columns of one instruction, a power of two from 8 to 256.
        k: Depth: 256 / bits.
        bits: Width of an element of a and b.
    """
    warp = [(16, 0), (32, 0)]
    thin = mma_sync(16, 8, k, bits)
    a, acc = thin.layout("a").bases, thin.acc.bases
    register = [*acc["register"], *_steps(1, 8, n)]
    return Fragments(
        LinearLayout({"register": a["register"], "lane": a["lane"], "warp": warp}, (64, k)),
        None,
        LinearLayout({"register": register, "lane": acc["lane"], "warp": warp}, (64, n)),
    )


# AMD.


def mfma(size: int, k: int, kwidth: int | None = None, f64: bool = False) -> Fragments:
    """Fragments of `v_mfma` of size x size x k with one block, on a wave of 64 lanes.

    Args:
        size: 16 or 32, both m and n.
        k: Depth of one instruction; a lane holds `size * k / 64` elements of a and of b.
        kwidth: Elements along k that a lane holds consecutively, at least those of one instruction,
            which is the default.
        f64: Whether it is the f64 instruction, whose accumulator rows interleave over the lanes.

    Lane l has row (or column) l % size; lanes beyond `size` go along k.
    """
    per_lane = size * k // 64
    groups = 64 // size
    rows = _steps(0, 1, size)
    if f64:
        register, lane = _steps(0, groups, size), _steps(0, 1, groups)
    else:
        # Groups of lanes hold blocks of four rows.
        register = [*_steps(0, 1, 4), *_steps(0, 4 * groups, size)]
        lane = _steps(0, 4, 4 * groups)
    acc = LinearLayout({"register": register, "lane": [*_turn(rows), *lane]}, (size, size))
    return _with_k(acc, rows, groups, per_lane, kwidth)


def wmma_gfx11() -> Fragments:
    """Fragments of RDNA 3's `v_wmma` 16x16x16 on a wave of 32 lanes, any type.

    Both halves of the wave hold all of a and b; accumulator rows alternate between the halves. An
    f16 or bf16 accumulator uses one half of each 32-bit register.
    """
    rows = _steps(0, 1, 16)
    held = {"register": _steps(1, 1, 16), "lane": [*rows, (0, 0)]}
    acc = {"register": _steps(0, 2, 16), "lane": [*_turn(rows), (1, 0)]}
    a = LinearLayout(held, (16, 16))
    return Fragments(a, a.transpose((1, 0)), LinearLayout(acc, (16, 16)))


def wmma_gfx12(k: int = 16, kwidth: int | None = None) -> Fragments:
    """Fragments of RDNA 4's `v_wmma` 16x16xk on a wave of 32 lanes, any type.

    Args:
        k: Depth: 16, or 32 for 4-bit integers.
        kwidth: Elements along k that a lane holds consecutively; by default those of one
            instruction, k / 2. (The manual's order for 16-bit types is 4, which sums the same.)

    The halves of the wave share k between them, and accumulator rows 0 to 7 and 8 to 15.
    """
    rows = _steps(0, 1, 16)
    acc = {"register": _steps(0, 1, 8), "lane": [*_turn(rows), (8, 0)]}
    return _with_k(LinearLayout(acc, (16, 16)), rows, 2, k // 2, kwidth)


def _with_k(
    acc: LinearLayout, rows: Sequence[Basis], groups: int, per_lane: int, kwidth: int | None
) -> Fragments:
    """Add operands whose lanes hold runs of `kwidth` along k, `groups` of lanes side by side."""
    run = per_lane if kwidth is None else kwidth
    held = max(run, per_lane)
    k = held * groups
    register = [*_steps(1, 1, run), *_steps(1, run * groups, k)]
    lane = [*rows, *_steps(1, run, run * groups)]
    a = LinearLayout({"register": register, "lane": lane}, (acc.shape[0], k))
    return Fragments(a, a.transpose((1, 0)), acc, held // per_lane)


# Without matrix instructions.


@dataclass(frozen=True, eq=False)
class FmaOperands:
    """Operands for multiplying a tile in each thread's own fused multiply-adds.

    Every thread holds the whole rows of a and columns of b that its accumulators need. What one
    step along k multiplies lies side by side, and can be read just before that step:

        acc[r] += a[i * rows + a_row[r]] * b[i * columns + b_column[r]]   for i in range(k)

    with `rows` and `columns` the registers of an operand by k.
    """

    a: LinearLayout
    b: LinearLayout
    a_row: IntArray
    b_column: IntArray


@lru_cache(maxsize=1024)
def fma_operands(acc: LinearLayout, k: int) -> FmaOperands:
    """Give the operand layouts with which an accumulator layout needs no exchange of data.

    Args:
        acc: Layout of the ... x m x n accumulator.
        k: Depth of the product.
    """
    *batch, m, n = acc.shape
    rows, a_row = broadcast_operand(acc, (*batch, m, 1))
    columns, b_column = broadcast_operand(acc, (*batch, 1, n))
    return FmaOperands(_deep(rows, -1, k), _deep(columns, -2, k), a_row, b_column)


def _deep(layout: LinearLayout, axis: int, k: int) -> LinearLayout:
    """Grow one dimension of size 1 to k, in the high register bits."""
    axis %= layout.rank
    shape = [k if i == axis else size for i, size in enumerate(layout.shape)]
    dims = {name: list(dim) for name, dim in layout.bases.items()}
    deep = [tuple(b if i == axis else 0 for i in range(layout.rank)) for b in _powers(1, k)]
    return LinearLayout({**dims, "register": dims["register"] + deep}, shape)


def _powers(start: int, stop: int) -> Iterable[int]:
    """Give start, 2 * start, ... below stop, a power-of-two multiple of start."""
    return (start << i for i in range(max(0, log2_exact(stop) - log2_exact(start))))


def _steps(axis: int, start: int, stop: int) -> list[Basis]:
    """Give the bases from `start` up to below `stop` along one of two dimensions."""
    return [(x, 0) if axis == 0 else (0, x) for x in _powers(start, stop)]


def _spread(layout: LinearLayout) -> LinearLayout:
    """Swap bits 2 and 4 of the first of two coordinates."""
    moved = {4: 16, 16: 4}
    bases = {
        name: [(moved.get(row, row), column) for row, column in dim]
        for name, dim in layout.bases.items()
    }
    return LinearLayout(bases, layout.shape)


def _turn(bases: Sequence[Basis]) -> list[Basis]:
    """Swap the two coordinates of each basis."""
    return [(column, row) for row, column in bases]
