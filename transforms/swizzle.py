"""Choose where in shared memory each element of a tile goes, so that bank conflicts are avoided.

The choice is a linear map over F2 from offsets to the tensor, so every access of every candidate is
costed exactly and cheaply (see `shared_access`). Candidates, the simplest first:

1. Row-major order with each dimension fastest, plain and with the usual xor swizzles.
2. Maps built from what the accesses need (`swizzle_construct`).

Layouts that the hardware fixes are not chosen: see `tma_layout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import distinct_registers
from tiledsl.transforms.matrix_access import MatrixAccess, matrix_access
from tiledsl.transforms.shared_access import (
    NVIDIA,
    SharedAccess,
    SharedMemory,
    shared_access,
)
from tiledsl.transforms.swizzle_construct import Access, constructed_layouts
from tiledsl.transforms.tma_layout import xor_swizzle


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
    yield from constructed_layouts(shape, element_bits, accesses, memory)


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
