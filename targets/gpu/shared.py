"""Shared memory: addresses, vectors and matrices of registers, asynchronous copies, barriers.

A buffer is a pointer to its start. Where a thread's vector lies is the xor of two linear functions,
of the thread and of the register; the bits that no thread moves are added as constants, which
become immediate operands, and the few different rests are built once at the kernel's entry.
"""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir
from mlir.dialects import arith, llvm, scf

from tiledsl.dialects import tgpu
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import distinct_registers, register_map
from tiledsl.dialects.types import element_of, held_by, is_tile, shape_of, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer, vector_of
from tiledsl.targets.gpu.gather_bytes import ByteGatherer
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.memory import access_width, hints_of, loaded, stored
from tiledsl.targets.gpu.place import first_registers
from tiledsl.targets.gpu.pointers import Addresses
from tiledsl.targets.gpu.types import in_memory
from tiledsl.transforms.matrix_access import MatrixAccess, matrix_access
from tiledsl.transforms.shared_access import SharedAccess, shared_access


class SharedAddresses:
    """The addresses at which each thread reads or writes one buffer.

    Args:
        lowering: The kernel.
        buffer: `!llvm.ptr<3>` to the buffer's (slot's) start.
        offsets: Map from register, lane and warp to the offset in elements.
        element: The element's type in memory.
    """

    def __init__(
        self, lowering: Lowering, buffer: ir.Value, offsets: LinearLayout, element: ir.Type
    ) -> None:
        self._place = lowering.place
        self._buffer = buffer
        self._element = element
        self._columns = (*offsets.flat("lane"), *offsets.flat("warp"))
        self._moved = 0
        for column in self._columns:
            self._moved |= column
        self._bases: dict[int, ir.Value] = {}

    def at(self, offset: int) -> ir.Value:
        """Return this thread's address of the register whose own offset is `offset`."""
        mixed, fixed = offset & self._moved, offset & ~self._moved
        if mixed not in self._bases:
            thread = self._place.mixed(self._columns, mixed)
            base = self._buffer
            self._bases[mixed] = base if thread is None else emit.gep(base, thread, self._element)
        return emit.gep(self._bases[mixed], fixed, self._element)


def buffer_element(buffer: ir.Value) -> ir.Type:
    """Return the type in memory of a buffer's elements."""
    return in_memory(element_of(held_by(buffer.type)))


def buffer_layout(lowering: Lowering, buffer: ir.Value) -> LinearLayout:
    """Return the layout of a buffer (of each slot)."""
    return lowering.types.layout(held_by(buffer.type))


def when(predicate: ir.Value | None, act: Callable[[], object]) -> None:
    """Build what `act` builds, under a branch unless the predicate is None."""
    if predicate is None:
        act()
        return
    branch = scf.IfOp(predicate)
    with ir.InsertionPoint(branch.then_block):
        act()
        scf.YieldOp([])


def _alloc(lowering: Lowering, op: tgpu.AllocOp) -> None:
    offset: int | None = op.offset
    if offset is None:
        raise CompilerBug(f"expected a place in shared memory for {op}")

    def address() -> ir.Value:
        base = lowering.once("shared", lowering.machine.shared_base)
        return emit.gep(base, offset, integer(8))

    lowering.define(op.buffer, lowering.once(f"shared+{offset}", address))


def _slot(lowering: Lowering, op: tgpu.SlotOp) -> None:
    held = held_by(op.slot.type)
    size = storage_bits(held) // 8
    for extent in shape_of(held):
        size *= extent
    moved = arith.muli(lowering.value(op.index), i32(size))
    lowering.define(op.slot, emit.gep(lowering.value(op.buffer), moved, integer(8)))


# Registers to and from a buffer.


def choose_access(
    lowering: Lowering,
    layout: LinearLayout,
    shared: LinearLayout,
    bits: int,
    *,
    write: bool,
    matrices: bool,
) -> SharedAccess | MatrixAccess:
    """Return the cheaper of vectors and, where `matrices` says they may be used, matrices."""
    memory = lowering.machine.memory
    vectors = shared_access(layout, shared, bits, memory, write=write)
    found = matrix_access(layout, shared, bits, memory) if matrices else None
    if found is None:
        return vectors
    costs = [one.wavefronts + one.instructions for one in (found, vectors)]
    return found if costs[0] <= costs[1] else vectors


def local_store(
    lowering: Lowering,
    value: ir.Value,
    layout: LinearLayout,
    buffer: ir.Value,
    shared: LinearLayout,
) -> None:
    """Write a vector in memory's types, once an element, to a buffer of layout `shared`."""
    distinct = distinct_registers(layout)
    value = emit.shuffle(value, distinct.source)
    acting = lowering.place.holds_first(layout)
    access = choose_access(
        lowering,
        distinct.layout,
        shared,
        emit.width_of(value.type),
        write=True,
        matrices=lowering.machine.matrix_stores and acting is None,
    )
    if isinstance(access, MatrixAccess):
        _store_matrices(lowering, value, buffer, access)
        return
    when(acting, lambda: _store_vectors(lowering, value, buffer, access))


def _store_vectors(
    lowering: Lowering, value: ir.Value, buffer: ir.Value, access: SharedAccess
) -> None:
    element = emit.scalar_of(value.type)
    addresses = SharedAddresses(lowering, buffer, access.offsets, element)
    alignment = access.elements * emit.width_of(element) // 8
    bytes_ = ByteGatherer(lowering.machine, value)
    for registers, offset in zip(access.registers, access.vector_offsets, strict=True):
        if bytes_.suits(lowering.machine, value, registers):
            vector = bytes_.gather(registers)
        else:
            vector = emit.shuffle(value, registers)
        llvm.store(vector, addresses.at(int(offset)), alignment=alignment)


def _store_matrices(
    lowering: Lowering, value: ir.Value, buffer: ir.Value, access: MatrixAccess
) -> None:
    addresses = SharedAddresses(lowering, buffer, access.address, emit.scalar_of(value.type))
    words = emit.to_words(value)
    for i, offset in enumerate(access.address.register_offsets):
        some = words[i * access.matrices : (i + 1) * access.matrices]
        lowering.machine.store_matrices(addresses.at(int(offset)), some, access.transposed)


def local_load(
    lowering: Lowering,
    layout: LinearLayout,
    buffer: ir.Value,
    shared: LinearLayout,
    element: ir.Type,
) -> ir.Value:
    """Read a tile from a buffer of layout `shared`, as a vector of memory's type `element`."""
    distinct = distinct_registers(layout).layout
    access = choose_access(
        lowering,
        distinct,
        shared,
        emit.width_of(element),
        write=False,
        matrices=lowering.machine.matrix_loads,
    )
    if isinstance(access, MatrixAccess):
        made = _load_matrices(lowering, vector_of(distinct.registers, element), buffer, access)
    else:
        made = _load_vectors(lowering, buffer, element, access)
    copied = register_map(distinct, layout)
    assert copied is not None  # only copies were dropped
    return emit.shuffle(made, copied)


def _load_vectors(
    lowering: Lowering, buffer: ir.Value, element: ir.Type, access: SharedAccess
) -> ir.Value:
    addresses = SharedAddresses(lowering, buffer, access.offsets, element)
    type_ = vector_of(access.elements, element)
    alignment = access.elements * emit.width_of(element) // 8
    parts = [
        llvm.load(type_, addresses.at(int(offset)), alignment=alignment)
        for offset in access.vector_offsets
    ]
    return emit.shuffle(emit.concatenate(parts), access.fill)


def _load_matrices(
    lowering: Lowering, type_: ir.VectorType, buffer: ir.Value, access: MatrixAccess
) -> ir.Value:
    addresses = SharedAddresses(lowering, buffer, access.address, type_.element_type)
    words: list[ir.Value] = []
    for offset in access.address.register_offsets:
        pointer = addresses.at(int(offset))
        words += lowering.machine.load_matrices(pointer, access.matrices, access.transposed)
    return emit.from_words(words, type_)


def _local_store(lowering: Lowering, op: tgpu.LocalStoreOp) -> None:
    value = stored(lowering.value(op.tile))
    if emit.is_pointer_type(value.type):
        value = emit.bitcast(value, integer(64))
    buffer = lowering.value(op.buffer)
    shared = buffer_layout(lowering, op.buffer)
    local_store(lowering, value, lowering.layout(op.tile), buffer, shared)


def _local_load(lowering: Lowering, op: tgpu.LocalLoadOp) -> None:
    element = buffer_element(op.buffer)
    held = integer(64) if emit.is_pointer_type(element) else element
    buffer = lowering.value(op.buffer)
    shared = buffer_layout(lowering, op.buffer)
    made = local_load(lowering, lowering.layout(op.tile), buffer, shared, held)
    if held != element:
        made = emit.bitcast(made, element)
    lowering.define(op.tile, loaded(made, element_type(op.tile)))


# Asynchronous copies.

_COPY_BYTES = (4, 8, 16)


def _async_copy(lowering: Lowering, op: tgpu.AsyncCopyOp) -> None:
    layout = lowering.layout(op.ptr)
    when(lowering.place.holds_first(layout), lambda: _copy_registers(lowering, op, layout))


def _copy_registers(lowering: Lowering, op: tgpu.AsyncCopyOp, layout: LinearLayout) -> None:
    sources = Addresses(lowering.pointers(op.ptr))
    element = buffer_element(op.buffer)
    size = emit.width_of(element) // 8
    shared = buffer_layout(lowering, op.buffer)
    most = access_width(lowering, op.ptr, op.mask) * size
    access = shared_access(
        layout,
        shared,
        size * 8,
        lowering.machine.memory,
        write=True,
        max_bytes=most,
        in_order=True,
    )
    addresses = SharedAddresses(lowering, lowering.value(op.buffer), access.offsets, element)
    mask = None if op.mask is None else lowering.value(op.mask)
    width = access.elements
    for start in first_registers(layout)[::width]:
        predicate = None if mask is None else emit.extract(mask, start)
        place = addresses.at(int(access.offsets.register_offsets[start]))
        source = sources.at(start)
        if width * size in _COPY_BYTES:
            lowering.machine.async_copy(place, source, width * size, hints_of(op), predicate)
            continue
        # Too narrow for a copy of its own: through a register, done at once.
        type_ = vector_of(width, element)
        zeros = None if predicate is None else emit.zero(type_)
        value = lowering.machine.load(type_, source, width * size, hints_of(op), predicate, zeros)
        llvm.store(value, place, alignment=width * size)


def _async_commit(lowering: Lowering, op: tgpu.AsyncCommitOp) -> None:
    lowering.machine.async_commit()


def _async_wait(lowering: Lowering, op: tgpu.AsyncWaitOp) -> None:
    lowering.machine.async_wait(op.pending)


def _barrier(lowering: Lowering, op: tgpu.BarrierOp) -> None:
    lowering.meet(op.memory, proxy=op.proxy, cluster=op.cluster)


def _share_result(lowering: Lowering, op: tgpu.ShareResultOp) -> None:
    """Write what first holders have, meet, read it everywhere."""
    buffer = lowering.value(op.buffer)
    element = buffer_element(op.buffer)
    shared = buffer_layout(lowering, op.buffer)
    if is_tile(op.value.type):
        layout = lowering.layout(op.value)
        local_store(lowering, stored(lowering.value(op.value)), layout, buffer, shared)
        lowering.meet("all", proxy=op.proxy)
        made = local_load(lowering, layout, buffer, shared, element)
        lowering.define(op.result, loaded(made, element_type(op.result)))
        return
    value = stored(lowering.value(op.value))
    size = emit.width_of(element) // 8
    when(
        lowering.place.is_first(lowering.kernel.threads),
        lambda: llvm.store(value, buffer, alignment=size),
    )
    lowering.meet("all", proxy=op.proxy)
    made = llvm.load(element, buffer, alignment=size)
    lowering.define(op.result, loaded(made, element_type(op.result)))


HANDLERS: dict[str, Handler] = {
    "tgpu.alloc": _alloc,
    "tgpu.slot": _slot,
    "tgpu.local_store": _local_store,
    "tgpu.local_load": _local_load,
    "tgpu.async_copy": _async_copy,
    "tgpu.async_commit": _async_commit,
    "tgpu.async_wait": _async_wait,
    "tgpu.barrier": _barrier,
    "tgpu.share_result": _share_result,
}
