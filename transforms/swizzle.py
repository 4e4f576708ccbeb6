"""Choose where in shared memory each element of a tile goes, so that bank conflicts are avoided.

The choice is a linear map over F2 from offsets to the tensor, so every access of every candidate is
costed exactly and cheaply (see `shared_access`). Candidates, the simplest first:

1. Row-major order with each dimension fastest, plain and with the usual xor swizzles.
2. Maps built from what the accesses need. The low offset bits walk a vector that some access can
   move at once. The high bits, those beyond one row of all banks, must span a subspace that meets
   no phase of any access: then no two words of a phase share a bank. Two accesses always have such
   a subspace, found greedily; with more it is sought and else the fewest are let down. This is the
   construction of "Linear Layouts" (arXiv 2505.23819), section 5.4.

Also here: the swizzled layouts that TMA writes and `wgmma` reads, which the hardware fixes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.dialects.layout_shape import distinct_registers
from tiledsl.transforms.matrix_access import MatrixAccess, matrix_access
from tiledsl.transforms.shared_access import (
    NVIDIA,
    SharedAccess,
    SharedMemory,
    shared_access,
)


@dataclass(frozen=True)
class Access:
    """One register layout that writes or reads the buffer.

    Attributes:
        layout: Where threads hold the tile.
        write: Whether it writes.
        matrix: Whether `ldmatrix` (reading) or `stmatrix` (writing) may be used.
        min_bytes: Narrowest vector that will do.
        max_bytes: Widest vector.
        in_order: Whether a vector must be consecutive registers in order.
        weight: How often it happens for each time the others do.
    """

    layout: LinearLayout
    write: bool = False
    matrix: bool = False
    min_bytes: int = 1
    max_bytes: int = 16
    in_order: bool = False
    weight: int = 1

    @staticmethod
    def copy(layout: LinearLayout, min_bytes: int = 4, max_bytes: int = 16) -> Access:
        """Give the writing end of an asynchronous copy from global memory, as by `cp.async`."""
        return Access(layout, True, False, min_bytes, max_bytes, True)


@dataclass(frozen=True, eq=False)
class SharedChoice:
    """A shared-memory layout and how each access, in the order asked for, uses it."""

    layout: LinearLayout
    accesses: tuple[SharedAccess | MatrixAccess, ...]

    @property
    def conflict_free(self) -> bool:
        """Whether no access meets a bank conflict."""
        return all(access.degree == 1 for access in self.accesses)


def choose_shared_layout(
    shape: Sequence[int],
    element_bits: int,
    writer: LinearLayout | None,
    readers: Sequence[LinearLayout],
    *,
    memory: SharedMemory = NVIDIA,
    matrix_loads: bool = False,
    matrix_stores: bool = False,
    async_writer: bool = False,
) -> SharedChoice:
    """Choose a layout for one writer and some readers; see `choose_for` for anything finer.

    Args:
        shape: The tile.
        element_bits: Width of an element.
        writer: Register layout that writes; None if nothing in registers does.
        readers: Register layouts that read.
        memory: The chip's banks.
        matrix_loads: Whether the chip has `ldmatrix`.
        matrix_stores: Whether the chip has `stmatrix`.
        async_writer: Whether the writer copies from global memory by `cp.async` or its like.
    """
    accesses = [Access(layout, matrix=matrix_loads) for layout in readers]
    if writer is not None:
        store = Access(writer, write=True, matrix=matrix_stores)
        accesses.insert(0, Access.copy(writer) if async_writer else store)
    return choose_for(tuple(shape), element_bits, tuple(accesses), memory)


@lru_cache(maxsize=1024)
def choose_for(
    shape: tuple[int, ...],
    element_bits: int,
    accesses: tuple[Access, ...],
    memory: SharedMemory = NVIDIA,
) -> SharedChoice:
    """Choose the layout that costs these accesses least; of equals, the simplest.

    Raises:
        ValueError: An access has another shape.
    """
    for access in accesses:
        if access.layout.shape != shape:
            raise ValueError(f"expected layouts of shape {shape}, found {access.layout.shape}")
    bound = sum(_least_cost(access, element_bits, memory) for access in accesses)
    best: SharedChoice | None = None
    best_cost = math.inf
    for layout in _candidates(shape, element_bits, accesses, memory):
        used = tuple(_use(access, layout, element_bits, memory) for access in accesses)
        cost = sum(
            _cost(one, access, element_bits) for one, access in zip(used, accesses, strict=True)
        )
        if cost < best_cost:
            best, best_cost = SharedChoice(layout, used), cost
        if cost <= bound:
            break
    assert best is not None  # row-major order is always a candidate
    return best


def _use(
    access: Access, shared: LinearLayout, element_bits: int, memory: SharedMemory
) -> SharedAccess | MatrixAccess:
    """Give the cheaper of the matrix instructions and ordinary vectors."""
    vectors = shared_access(
        access.layout,
        shared,
        element_bits,
        memory,
        write=access.write,
        max_bytes=access.max_bytes,
        in_order=access.in_order,
    )
    if not access.matrix:
        return vectors
    matrices = matrix_access(access.layout, shared, element_bits, memory)
    if matrices is None or _raw_cost(matrices) > _raw_cost(vectors):
        return vectors
    return matrices


def _raw_cost(used: SharedAccess | MatrixAccess) -> float:
    """Give the cost of one access: the times banks are asked plus instructions issued."""
    return used.wavefronts + used.instructions


def _cost(used: SharedAccess | MatrixAccess, access: Access, element_bits: int) -> float:
    cost = _raw_cost(used) * access.weight
    if isinstance(used, SharedAccess) and used.elements * element_bits < 8 * access.min_bytes:
        cost += 1 << 20  # will not do: any layout that allows the vector is better
    return cost


def _least_cost(access: Access, element_bits: int, memory: SharedMemory) -> float:
    """Give a cost that no layout can beat: full vectors, no conflicts."""
    held = distinct_registers(access.layout).layout.registers
    elements = min(held, max(1, access.max_bytes * 8 // element_bits))
    masks = memory.phase(elements * element_bits // 8, access.write)
    least = held // elements * (1 + max(1, access.layout.lanes >> len(masks)))
    if access.matrix:
        matrices = access.layout.registers * element_bits / 32
        least = min(least, matrices + matrices / 4)
    return least * access.weight


def _candidates(
    shape: tuple[int, ...],
    element_bits: int,
    accesses: Sequence[Access],
    memory: SharedMemory,
) -> Iterator[LinearLayout]:
    axes = [axis for axis in reversed(range(len(shape))) if shape[axis] > 1]
    orders = [(axis, *(a for a in reversed(range(len(shape))) if a != axis)) for axis in axes]
    for order in orders or [tuple(reversed(range(len(shape))))]:
        yield xor_swizzle(shape, order)
    for order in orders:
        yield from _xor_swizzles(shape, order, element_bits, memory)
    yield from _constructed(shape, element_bits, accesses, memory)


@lru_cache(maxsize=1024)
def xor_swizzle(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    vector: int = 1,
    per_phase: int = 1,
    max_phase: int = 1,
) -> LinearLayout:
    """Give a row-major layout whose vectors are permuted within each row by an xor.

    Element c of row r goes where `c ^ (r // per_phase % max_phase * vector)` would.

    Args:
        shape: The tile.
        order: Dimensions, fastest first; c runs along `order[0]` and r along `order[1]`.
        vector: Elements that stay together.
        per_phase: Rows that are permuted alike.
        max_phase: Number of different permutations; 1 is plain order.
    """
    axes: list[list[int]] = []
    for axis in order:
        shift = sum(log2_exact(size) for size in shape[axis + 1 :])
        axes.append([1 << (shift + i) for i in range(log2_exact(shape[axis]))])
    if max_phase > 1:
        first, steps = log2_exact(per_phase), log2_exact(max_phase)
        for i in range(steps):
            axes[1][first + i] |= axes[0][log2_exact(vector) + i]
    return LinearLayout.from_flat({"offset": [c for axis in axes for c in axis]}, shape)


def _xor_swizzles(
    shape: tuple[int, ...], order: tuple[int, ...], element_bits: int, memory: SharedMemory
) -> Iterator[LinearLayout]:
    if len(order) < 2:
        return
    row, rows = shape[order[0]], shape[order[1]]
    per_phase = max(1, memory.row_bytes * 8 // (row * element_bits))
    for width in (16, 8, 4):
        vector = max(1, width * 8 // element_bits)
        for phases in (8, 4, 2, 16, 32):
            if phases * vector <= row and phases * per_phase <= rows:
                yield xor_swizzle(shape, order, vector, per_phase, phases)


# Layouts built from what the accesses need.


@dataclass(frozen=True)
class _Need:
    """What one way of using an access would like.

    Attributes:
        vector: Tensor indices to walk with the low offset bits, in order.
        lanes: Images of the lanes, or for matrices of the rows, whose phases must not collide.
        matrix: Whether by `ldmatrix` or `stmatrix`, which needs exactly this vector.
    """

    vector: tuple[int, ...]
    lanes: tuple[int, ...]
    matrix: bool


def _constructed(
    shape: tuple[int, ...],
    element_bits: int,
    accesses: Sequence[Access],
    memory: SharedMemory,
) -> Iterator[LinearLayout]:
    bits = sum(log2_exact(size) for size in shape)
    row_bits = min(bits, log2_exact(memory.row_bytes * 8 // element_bits))
    needs = [(access, _needs(access, element_bits)) for access in accesses]
    for vector in _vectors(needs, element_bits):
        busy = [_phase(access, some, vector, element_bits, memory) for access, some in needs]
        high = _avoiding(busy, bits, bits - row_bits)
        yield _layout_from(shape, vector, high, row_bits)


def _needs(access: Access, element_bits: int) -> list[_Need]:
    """Give the ways to use an access, ordinary vectors first, then those of `matrix_access`."""
    layout = access.layout
    registers = distinct_registers(layout).layout.flat("register")
    widest = log2_exact(max(1, access.max_bytes * 8 // element_bits))
    needs = [_Need(registers[:widest], layout.flat("lane"), False)]
    if not access.matrix or layout.lanes != 32 or element_bits not in (8, 16, 32):
        return needs
    packed = log2_exact(32 // element_bits)
    pair, lane = layout.flat("register")[:packed], layout.flat("lane")
    if len(pair) == packed:
        row, rows = (*pair, *lane[:2]), lane[2:]
        needs.append(_Need(row, rows, True))
        if element_bits == 16:
            needs.append(_Need(rows, row, True))
    return needs


def _vectors(
    needs: Sequence[tuple[Access, Sequence[_Need]]], element_bits: int
) -> Iterator[tuple[int, ...]]:
    """Give the vectors worth walking: each need's, and what each two accesses have in common."""
    widest = log2_exact(max(1, 128 // element_bits))
    found: dict[tuple[int, ...], None] = {}
    for _, some in needs:
        for need in some:
            found.setdefault(_independent(need.vector))
    for (a, _), (b, _) in combinations(needs, 2):
        first, second = a.layout.flat("register"), b.layout.flat("register")
        own = (1 << len(first)) - 1
        common = [f2.apply(first, mask & own) for mask in f2.kernel([*first, *second])]
        found.setdefault(_independent(common)[:widest])
    for vector in list(found):
        for length in range(len(vector) - 1, -1, -1):
            found.setdefault(vector[:length])
    return iter(found)


def _independent(vectors: Sequence[int]) -> tuple[int, ...]:
    mask = f2.independent(vectors)
    return tuple(v for i, v in enumerate(vectors) if mask >> i & 1)


def _phase(
    access: Access,
    needs: Sequence[_Need],
    vector: tuple[int, ...],
    element_bits: int,
    memory: SharedMemory,
) -> tuple[int, ...]:
    """Give generators of the tensor indices that one phase of an access touches at once."""
    for need in needs:
        if need.matrix and need.vector == vector:
            return (*need.lanes, *vector)
    registers = f2.Span(access.layout.flat("register"))
    own = 0  # as much of the vector as this access can move at once
    while own < len(vector) and vector[own] in registers:
        own += 1
    lane_bytes = min(access.max_bytes, (element_bits << own) // 8)
    word = log2_exact(max(1, memory.bank_bytes * 8 // element_bits))
    columns = needs[0].lanes
    lanes = [
        f2.apply(columns, mask)
        for mask in memory.phase(lane_bytes, access.write)
        if mask < 1 << len(columns)
    ]
    return (*lanes, *vector[: max(own, word)])


def _avoiding(busy: Sequence[tuple[int, ...]], bits: int, count: int) -> list[int]:
    """Find `count` independent tensor indices whose span meets as few subspaces as can be."""
    spans = [f2.Span(generators) for generators in busy]
    own = f2.Span()
    found: list[int] = []
    units = [1 << i for i in reversed(range(bits))]
    while len(found) < count:
        best, hits = 0, len(spans) + 1
        for candidate in _sums(units):
            if candidate in own:
                continue
            hit = sum(candidate in span for span in spans)
            if hit < hits:
                best, hits = candidate, hit
            if not hit:
                break
        found.append(best)
        own.add(best)
        for span in spans:
            span.add(best)
    return sorted(found)


def _sums(units: Sequence[int]) -> Iterator[int]:
    """Give sums of one, two and three units: two suffice to avoid two subspaces."""
    for size in (1, 2, 3):
        for some in combinations(units, size):
            yield sum(some)


def _layout_from(
    shape: tuple[int, ...], vector: tuple[int, ...], high: Sequence[int], row_bits: int
) -> LinearLayout:
    """Complete the vector and the high bits to a basis with the lowest tensor indices."""
    bits = sum(log2_exact(size) for size in shape)
    span = f2.Span()
    low = [v for v in vector if span.add(v)][:row_bits]
    span = f2.Span([*low, *high])
    kept = [h for i, h in enumerate(high) if f2.independent([*low, *high]) >> (len(low) + i) & 1]
    middle = [1 << i for i in range(bits) if span.add(1 << i)]
    return LinearLayout.from_flat({"offset": [*low, *middle, *kept]}, shape)


# Layouts that the hardware fixes.


@lru_cache(maxsize=256)
def tma_layout(
    shape: tuple[int, ...], element_bits: int, swizzle_bytes: int = 128, fastest: int = -1
) -> LinearLayout:
    """Give the layout that TMA boxes leave in shared memory and `wgmma` descriptors read.

    The tile is cut along its fastest dimension into boxes of `swizzle_bytes`, one after the other;
    in a box each row is `swizzle_bytes` long, and its 16-byte chunks are permuted: address bits 4
    and up are xored with bits 7 and up (PTX ISA 8.7, "Swizzling modes"). The buffer's start must be
    aligned to 8 * `swizzle_bytes` bytes.

    Args:
        shape: The tile; dimensions but the last two are outermost.
        element_bits: Width of an element.
        swizzle_bytes: 32, 64 or 128.
        fastest: The dimension contiguous in global memory, one of the last two. For an operand of a
            product: k for "K-major", m or n for "MN-major".

    Raises:
        ValueError: The tile has less than one box, or the mode does not exist.
    """
    rank = len(shape)
    fastest %= rank
    if swizzle_bytes not in (32, 64, 128):
        raise ValueError(f"expected a swizzle of 32, 64 or 128 bytes, found {swizzle_bytes}")
    width = swizzle_bytes * 8 // element_bits
    if shape[fastest] < width:
        raise ValueError(f"expected {width} elements along axis {fastest}, found {shape}")
    others = [axis for axis in reversed(range(rank)) if axis != fastest]
    order = (fastest, *others)
    plain = xor_swizzle(shape, order).flat("offset")
    across = log2_exact(width)
    boxes = log2_exact(shape[fastest]) - across
    rows = log2_exact(shape[others[0]]) if others else 0
    inner, further = plain[:across], plain[across : across + boxes]
    outer = plain[across + boxes :]
    columns = [*inner, *outer[:rows], *further, *outer[rows:]]
    chunk, line = log2_exact(128 // element_bits), log2_exact(1024 // element_bits)
    for i in range(log2_exact(swizzle_bytes // 16)):
        # A high address bit also flips a low one, as far as rows reach.
        if line + i < across + rows:
            columns[line + i] ^= columns[chunk + i]
    return LinearLayout.from_flat({"offset": columns}, shape)


def tma_mode(layout: LinearLayout, element_bits: int) -> tuple[int, int] | None:
    """Give the (fastest dimension, swizzle bytes) with which TMA writes a layout, if it can."""
    for fastest in {layout.rank - 1, max(0, layout.rank - 2)}:
        for swizzle_bytes in (128, 64, 32):
            fits = layout.shape[fastest] * element_bits >= swizzle_bytes * 8
            if fits and tma_layout(layout.shape, element_bits, swizzle_bytes, fastest) == layout:
                return fastest, swizzle_bytes
    return None
