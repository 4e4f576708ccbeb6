"""Stores of boxes in the IR: their pieces, the ring they go through, and the room that it finds."""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.place_shared import place_shared
from tiledsl.transforms.store_boxes import store_boxes

from .box_store_programs import HELD, loop, module_of
from .golden import golden

LIMIT = 232448
"""Bytes of an H100."""
STORE = (
    "%w = arith.constant dense<0.0> : tensor<128x256xf16, @wide>\n"
    '"tile.descriptor_store"(%c, %m, %n, %m, %one, %i, %zero, %w) {operandSegmentSizes = '
    "array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!tile.ptr<f16>, i32, i32, "
    "i32, i32, i32, i32, tensor<128x256xf16, @wide>) -> ()\n"
)
PIPELINE = HELD.replace("128x64", "11x128x64")
"""176 KB."""


def pipeline(uses: int) -> str:
    """Allocate a pipeline's slots and read one of them, before a store or so many times after."""
    slot = f'%slot = "tgpu.slot"(%pipe, %zero) : ({PIPELINE}, i32) -> {HELD}\n'
    load = f'"tgpu.local_load"(%slot) : ({HELD}) -> tensor<128x64xf16, @y>\n'
    return f'%pipe = "tgpu.alloc"() : () -> {PIPELINE}\n{slot}{load}' if not uses else load


def stored(text: str, limit: int = LIMIT) -> tuple[list[str], list[int], int]:
    """Give the buffers that boxes go out from in order, the offset of each, and the bytes used."""
    module = module_of(text)
    with module.context, ir.Location.unknown():
        store_boxes(module, limit=limit)
        place_shared(module, limit=limit)
    contracts.check(module, contracts.TGPU)
    order: list[str] = []
    offsets: list[int] = []
    found: dict[ir.Value, str] = {}
    for op in operations(module.operation):
        if isinstance(op, tgpu.BoxStoreOp):
            if op.buffer not in found:
                found[op.buffer] = "abcdefghijklmnop"[len(found)]
                made = op.buffer.owner
                assert isinstance(made, tgpu.AllocOp)
                offsets.append(made.offset)
            order.append(found[op.buffer])
    kernel = module.body.operations[len(module.body.operations) - 1]
    total = ir.IntegerAttr(kernel.operation.attributes["tgpu.shared_bytes"]).value
    return order, offsets, total


def test_a_tile_goes_out_in_pieces_each_warpgroup_its_own_part() -> None:
    module = module_of(STORE)
    text = golden(
        str(module),
        lambda module: store_boxes(module, limit=LIMIT),
        contracts.TGPU,
        """
CHECK: %[[A:.*]] = "tgpu.alloc"()
CHECK: %[[P:.*]] = "tgpu.slice"(%{{.*}}) {starts = array<i64: 0, 0>}
CHECK-NEXT: "tgpu.local_store"(%[[P]], %[[A]])
CHECK-NEXT: "tgpu.box_store"(%[[A]], {{.*}}) {copied = array<i64: 64, 64>, extents = array<i64: 128, 256>, groups = array<i64: 64, 0>{{.*}}starts = array<i64: 0, 0>
CHECK: "tgpu.slice"(%{{.*}}) {starts = array<i64: 0, 64>}
CHECK: "tgpu.slice"(%{{.*}}) {starts = array<i64: 0, 128>}
CHECK: "tgpu.slice"(%{{.*}}) {starts = array<i64: 0, 192>}
CHECK: "tgpu.box_store"({{.*}}starts = array<i64: 0, 192>
""",
    )
    assert "descriptor_store" not in text


def test_pieces_take_the_place_of_what_is_used_no_more() -> None:
    order, offsets, total = stored(pipeline(0) + STORE)
    assert order == ["a", "b", "c", "d"]
    assert offsets == [0, 16384, 32768, 49152]
    assert total == 11 * 16384


def test_pieces_share_no_bytes_if_as_many_programs_fit_without() -> None:
    small = pipeline(0).replace("11x128", "8x128")
    order, offsets, total = stored(small + STORE)
    assert order == ["a", "b", "c", "d"]
    assert offsets == [n * 16384 for n in (8, 9, 10, 11)]
    assert total == 12 * 16384


BARRIERS = "!tgpu.shared<tensor<2x1xi64, @w>>"
WORDS = (
    '"tgpu.layout"() {sym_name = "w", map = "offset=[] shape=[1]"} : () -> ()\n',
    f'%bars = "tgpu.alloc"() : () -> {BARRIERS}\n"tgpu.mbarrier_init"(%bars) : ({BARRIERS}) -> ()\n',
    f'"tgpu.mbarrier_end"(%bars) : ({BARRIERS}) -> ()\n',
)


def test_barriers_whose_bytes_nobody_wants_are_not_given_up_but_in_loops() -> None:
    for text, count in ((WORDS[1] + WORDS[2], 0), (loop(WORDS[1] + WORDS[2]), 1)):
        module = module_of(text, WORDS[0])
        with module.context, ir.Location.unknown():
            place_shared(module, limit=LIMIT)
        ends = [op for op in operations(module.operation) if isinstance(op, tgpu.MbarrierEndOp)]
        assert len(ends) == count


def test_pieces_go_round_a_ring_beside_what_lives_on() -> None:
    order, offsets, total = stored(pipeline(0) + STORE + pipeline(1))
    assert order == ["a", "b", "a", "b"]
    assert min(offsets) >= 11 * 16384
    assert total == 13 * 16384


def test_a_loop_s_stores_have_a_ring_of_their_own_from_trip_to_trip() -> None:
    inside = pipeline(0) + STORE
    order, offsets, total = stored(loop(inside))
    assert order == ["a", "b", "a", "b"]
    assert sorted(offsets) == [11 * 16384, 12 * 16384]
    assert total == 13 * 16384


def test_without_room_a_loop_s_stores_share_bytes_with_the_rest_of_the_trip() -> None:
    order, offsets, total = stored(loop(pipeline(0) + STORE), limit=12 * 16384 - 4096)
    assert order == ["a", "b", "a", "b"]
    assert max(offsets) < 11 * 16384
    assert total == 11 * 16384


def test_a_small_kernel_does_not_take_more_room_than_a_fair_share() -> None:
    order, _, total = stored(STORE)
    assert order == ["a", "b", "a", "b"]
    assert total == 2 * 16384
