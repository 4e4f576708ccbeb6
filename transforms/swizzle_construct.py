"""Build shared-memory layouts from what their accesses need, for `swizzle` to choose from.

The low offset bits walk a vector that some access can move at once, or the row of a matrix of
`ldmatrix`. The high bits, those beyond one row of all banks, must span a subspace that meets no
phase of any access: then no two words of a phase share a bank. Two accesses always have such a
subspace, found greedily; with more it is sought and else the fewest are let down. This is the
construction of "Linear Layouts" (arXiv 2505.23819), section 5.4. The bits between complete these to
a basis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.dialects.layout_shape import distinct_registers
from tiledsl.transforms.shared_access import SharedMemory


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


def constructed_layouts(
    shape: tuple[int, ...],
    element_bits: int,
    accesses: Sequence[Access],
    memory: SharedMemory,
) -> Iterator[LinearLayout]:
    """Give one layout for every vector that is worth walking with the low offset bits.

    Args:
        shape: The tile.
        element_bits: Width of an element.
        accesses: What is to be free of conflicts, all at once if possible.
        memory: The chip's banks.
    """
    bits = sum(log2_exact(size) for size in shape)
    full_bits = log2_exact(memory.row_bytes * 8 // element_bits)
    row_bits = min(bits, full_bits)
    write_bits = full_bits - log2_exact(memory.banks // memory.banks_for(write=True))
    needs = [(access, _needs(access, element_bits)) for access in accesses]
    for vector in _vectors(needs, element_bits):
        busy = [_phase(access, some, vector, element_bits, memory) for access, some in needs]
        high = _avoiding(busy, bits, bits - row_bits)
        # Where writes see fewer banks, their rows are shorter: more bits have to avoid them.
        writes = [some for some, (access, _) in zip(busy, needs, strict=True) if access.write]
        more = _avoiding(writes, bits, max(0, row_bits - write_bits), high)
        yield _layout_from(shape, vector, [*more, *high], row_bits)


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


def _avoiding(
    busy: Sequence[tuple[int, ...]], bits: int, count: int, given: Sequence[int] = ()
) -> list[int]:
    """Find `count` independent tensor indices whose span meets as few subspaces as can be.

    With `given` ones, independent too, it is the span of both.
    """
    spans = [f2.Span([*generators, *given]) for generators in busy]
    own = f2.Span(given)
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
