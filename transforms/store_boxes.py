"""Store boxes through shared memory, by the unit that copies boxes.

A tile goes out piece by piece (`box_pieces`): threads write a piece to a buffer of shared memory,
and one of them, or one of each warpgroup, tells the unit to copy it. The next pieces go to other
buffers, round a ring of them; the unit works meanwhile. Waiting for it is `wait_for_stores`'s.

Outside of loops pieces have as many buffers as find room beside what still lives, for the buffers
of the loop before may be used again. In a loop two must do, which are the loop's own where there is
room: then the copies go on while the next trip fills the others. Without room they may share bytes
with what lives elsewhere in the trip.

Before: the `tgpu` level, after `pipeline_loops`.
After: the same without `tile.descriptor_store`.

    "tile.descriptor_store"(%base, %m, %n, %sm, %sn, %i, %j, %t) : ... tensor<128x128xf16, @x>
becomes
    %b0 = "tgpu.alloc"() ...; %b1 = "tgpu.alloc"() ...
    %t0 = "tgpu.slice"(%t) {starts = [0, 0]} : ... -> tensor<128x64xf16, @y>
    "tgpu.local_store"(%t0, %b0)
    "tgpu.box_store"(%b0, %base, %m, %n, %sm, %sn, %i, %j) {starts = [0, 0], ...}
    %t1 = "tgpu.slice"(%t) {starts = [0, 64]} ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import element_of, shape_of, shared_type, storage_bits, tile_type
from tiledsl.transforms.box_pieces import Pieces, cut
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.shared_uses import buffer_bytes, buffer_uses

_LOOPS = ("scf.for", "scf.while")
_RING = 2
"""Buffers that let threads write one piece while another is copied."""
_SHARE = 7
"""Programs that should fit side by side, as far as buffers of this pass decide it."""
_RESERVE = 1024
"""Bytes kept for what later passes exchange between warps."""


def store_boxes(module: ir.Module, *, limit: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        limit: Bytes of shared memory that one program can have.
    """
    layouts = Layouts(module)
    for kernel in kernels(module):
        for op in list(operations(kernel.operation)):
            if isinstance(op, tile.DescriptorStoreOp):
                _store(op, kernel.operation, layouts, limit)


def _store(op: tile.DescriptorStoreOp, kernel: ir.Operation, layouts: Layouts, limit: int) -> None:
    matrix = _matrix(op, layouts)
    size = storage_bits(matrix.type) // 8
    loops = [one for one in _around(op.operation) if one.name in _LOOPS]
    before, room = _room(op.operation, kernel, loops, limit)
    pieces = cut(layouts.of(matrix.type), size, room // size // _RING)
    most = _RING if loops else len(pieces.starts)
    count = max(1, min(len(pieces.starts), most, room // (pieces.elements * size)))
    loc = op.operation.location
    held = _held(matrix, pieces, layouts)
    with ir.InsertionPoint(before), loc:
        ring = [tgpu.AllocOp.build(results=[held]).buffer for _ in range(count)]
    with ir.InsertionPoint(op), loc:
        for number, start in enumerate(pieces.starts):
            _store_piece(op, matrix, pieces, start, ring[number % count], layouts)
    op.operation.erase()


def _matrix(op: tile.DescriptorStoreOp, layouts: Layouts) -> ir.Value:
    """Return what is stored without the dimensions in front, along which it has one element."""
    *outer, rows, columns = shape_of(op.tile.type)
    if not outer:
        return op.tile
    layout = layouts.of(op.tile.type).reshape((rows, columns))
    type_ = tile_type((rows, columns), element_of(op.tile.type), layouts.name(layout))
    with ir.InsertionPoint(op), op.operation.location:
        return tile.ReshapeOp.build(op.tile, results=[type_]).tile


def _held(matrix: ir.Value, pieces: Pieces, layouts: Layouts) -> ir.Type:
    """Give the type of a buffer for a piece, in the simplest order until one is chosen."""
    name = layouts.name(LinearLayout.identity(pieces.shape), "shared")
    return shared_type(tile_type(pieces.shape, element_of(matrix.type), name))


def _store_piece(
    op: tile.DescriptorStoreOp,
    part: ir.Value,
    pieces: Pieces,
    start: tuple[int, int],
    buffer: ir.Value,
    layouts: Layouts,
) -> None:
    extents = shape_of(part.type)
    if len(pieces.starts) > 1:
        name = layouts.name(pieces.layout)
        type_ = tile_type(pieces.shape, element_of(part.type), name)
        part = tgpu.SliceOp.build(part, results=[type_], starts=start).tile
    tgpu.LocalStoreOp.build(part, buffer)
    tgpu.BoxStoreOp.build(
        [buffer, *list(op.parts)[:-1]],
        extents=extents,
        starts=start,
        copied=pieces.box,
        groups=[step for group in pieces.groups for step in group],
        adds=op.adds or None,
        apart=op.apart or None,
    )


def _room(
    op: ir.Operation, kernel: ir.Operation, loops: list[ir.Operation], limit: int
) -> tuple[ir.Operation, int]:
    """Decide before which op to allocate, and how many bytes at most."""
    order = [one.operation for one in operations(kernel)]
    allocs = [one for one in operations(kernel) if isinstance(one, tgpu.AllocOp)]
    sizes = [buffer_bytes(one.buffer.type) for one in allocs]
    fair = limit // _SHARE
    if loops:
        own = limit - _RESERVE - sum(sizes)
        if own >= fair:
            return loops[-1], min(own, _RING * fair)
    later = set(order[order.index(op) :])
    alive = sum(
        size
        for one, size in zip(allocs, sizes, strict=True)
        if any(_reaches(one, user, later, loops) for user in buffer_uses(one.buffer).users)
    )
    return op, min(max(sum(sizes) - alive, fair), limit - _RESERVE - alive)


def _reaches(
    alloc: tgpu.AllocOp, user: ir.OpView, later: set[ir.Operation], loops: list[ir.Operation]
) -> bool:
    """Whether a user of a buffer comes later than a store, perhaps in the next trip of a loop."""
    if user.operation in later:
        return True
    around = list(_around(user.operation))
    own = list(_around(alloc.operation))
    return any(loop in around and loop not in own for loop in loops)


def _around(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the ops around an op, from the inside out."""
    parent: Any = op.parent
    while parent is not None and parent.name != "func.func":
        yield parent.operation
        parent = parent.parent
