"""What is computed again behind a reduction, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from mlir import ir

import tiledsl as tile
from tests.kernels.test_long_rows import emptied_behind, norm, softmax
from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.tile import LoadOp
from tiledsl.targets.nvptx import ptxas
from tiledsl.transforms.rematerialize import rematerialize

ROOM = 164 << 10
SOFTMAX = {"x": "*fp32:16", "out": "*fp32:16"}
NORM = {"x": "*bf16:16", "more": "*fp32:16", "weight": "*fp32:16", "out": "*fp32:16"}


@tile.jit
def far(x: Any, out: Any, BLOCK: tile.constexpr, OPS: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)
    for _ in tile.static_range(OPS):
        value = value * value + 1.0
    tile.store(out + i, value - tile.max(value))


@tile.jit
def product(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    m, n = tile.arange(0, BLOCK)[:, None], tile.arange(0, BLOCK)[None, :]
    value = tile.load(x + m * BLOCK + n)
    more = tile.dot(value.to(tile.float16), value.to(tile.float16))
    tile.store(out + m * BLOCK + n, value - tile.max(value) + more)


@tile.jit
def weights_written(x: Any, weight: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)
    value -= tile.max(value)
    tile.store(weight + i, tile.load(weight + i) * value)


@tile.jit
def barred(x: Any, weight: Any, out: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value, scale = tile.load(x + i), tile.load(weight + i)
    total = tile.max(value)
    tile.debug_barrier()
    tile.store(out + i, (value - total) * scale)


@tile.jit
def counted(x: Any, count: Any, out: Any, BLOCK: tile.constexpr, USED: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)
    old = tile.atomic_add(count, 1)
    tile.store(out + i, value + old if USED else value)


@tile.jit
def scanned(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    """Scan rows of which each belongs to a warp."""
    m, n = tile.arange(0, 2)[:, None], tile.arange(0, BLOCK)[None, :]
    value = tile.load(x + m * BLOCK + n)
    tile.store(out + m * BLOCK + n, value - tile.cumsum(value, axis=1))


@tile.jit
def columns(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    """Find the largest number of each column: all warps exchange 32 KB."""
    m, n = tile.arange(0, BLOCK)[:, None], tile.arange(0, 128)[None, :]
    value = tile.load(x + m * 128 + n)
    tile.store(out + m * 128 + n, value - tile.argmax(value, axis=0, keep_dims=True))


@tile.jit
def expanded(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)[None, :]
    tile.store(out + i[None, :], value - tile.max(value, axis=1, keep_dims=True))


@tile.jit
def carried(x: Any, out: Any, n: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    total = tile.zeros((BLOCK,), tile.float32)
    for k in range(n):
        total += tile.load(x + k * BLOCK + i)
        total -= tile.max(total)
    tile.store(out + i, total)


@tile.jit
def chosen(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)
    positive = value > 0
    most = tile.max(tile.where(positive, value, -value))
    tile.store(out + i, tile.where(positive, value - most, most))


@tile.jit
def watched(x: Any, out: Any, BLOCK: tile.constexpr) -> None:
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i, volatile=True)
    tile.store(out + i, value - tile.max(value))


def stages_of(kernel: Any, types: dict[str, str], warps: int = 2, **constants: Any) -> Any:
    constants.setdefault("BLOCK", 4096)
    return tile.compile(kernel, types, constants, target="sm_80", num_warps=warps)


def run(compiled: Any, least: int = 32, room: int = ROOM) -> list[ir.OpView]:
    """Run the pass on what comes to it; give the kernel's ops."""
    module = parse(dict(compiled.stages)["copy_boxes"])
    with module.context, ir.Location.unknown():
        rematerialize(module, least=least, shared_bytes=room)
    contracts.check(module, contracts.TGPU)
    return list(operations(module.operation))


def count(ops: list[ir.OpView], kind: Any) -> int:
    return sum(isinstance(op, kind) for op in ops)


@pytest.fixture(autouse=True)
def _no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


def test_each_stretch_between_reductions_reads_the_row_and_computes_from_it_again():
    compiled = stages_of(softmax, SOFTMAX, COLUMNS=4000)
    ops = run(compiled)
    assert count(ops, tgpu.AsyncCopyOp) == count(ops, tgpu.AsyncWaitOp) == 1
    assert count(ops, tgpu.LocalLoadOp) == 3
    assert count(ops, LoadOp) == 0
    differences = dict(compiled.stages)["copy_boxes"].count("arith.subf")
    assert sum(op.operation.name == "arith.subf" for op in ops) == 2 * differences
    names = [op.operation.name for op in ops]
    assert names.index("tgpu.async_wait") < names.index("tgpu.local_load")


@pytest.mark.parametrize(
    ("warps", "columns", "least", "room"),
    [
        pytest.param(8, 4000, 32, ROOM, id="few registers"),
        pytest.param(2, 4000, 65, ROOM, id="fewer registers than it takes"),
        pytest.param(2, 3993, 32, ROOM, id="rows that begin anywhere"),
        pytest.param(2, 4000, 32, 31 << 10, id="half of shared memory is too little"),
        pytest.param(1, 4000, 32, ROOM, id="one warp reduces by itself"),
    ],
)
def test_rows_stay_in_registers(warps: int, columns: int, least: int, room: int):
    ops = run(stages_of(softmax, SOFTMAX, warps, COLUMNS=columns), least, room)
    assert count(ops, LoadOp) == 1
    assert count(ops, tgpu.LocalLoadOp) == 0


def test_kernels_that_use_shared_memory_for_more_stay_as_they_are():
    compiled = stages_of(product, SOFTMAX, BLOCK=64)
    assert count(run(compiled), tgpu.AsyncCopyOp) == 0


@pytest.mark.parametrize(("ops", "again"), [(2, True), (20, False)])
def test_what_takes_many_ops_is_kept(ops: int, again: bool):
    found = run(stages_of(far, SOFTMAX, OPS=ops))
    assert (count(found, tgpu.LocalLoadOp) == 2) == again


@pytest.mark.parametrize("early", [False, True])
def test_what_is_not_written_and_used_behind_reductions_is_loaded_late(early: bool):
    compiled = stages_of(norm, NORM, COLUMNS=4000, EARLY=early)
    ops = run(compiled)
    late = [op for op in ops if tgpu.LATE in op.operation.attributes]
    assert [type(op) for op in late] == [LoadOp]
    assert count(ops, tgpu.AsyncCopyOp) == 2
    assert "tgpu.pieces = 8" in dict(compiled.stages)["lower_to_machine"]
    ptx = str(compiled.asm["ptx"])
    assert ptx.index("st.global") < ptx.rindex("ld.global"), "piece by piece"


def test_what_the_kernel_writes_is_loaded_in_order():
    compiled = stages_of(weights_written, {"x": "*fp32:16", "weight": "*fp32:16"})
    ops = run(compiled)
    assert count(ops, tgpu.LocalLoadOp) == 2
    assert not any(tgpu.LATE in op.operation.attributes for op in ops)


@pytest.mark.parametrize(("room", "copied"), [(40 << 10, 0), (48 << 10, 2)])
def test_what_follows_from_two_loads_needs_room_for_both(room: int, copied: int):
    ops = run(stages_of(norm, NORM, COLUMNS=4000, EARLY=False), room=room)
    assert count(ops, tgpu.AsyncCopyOp) == copied


def test_what_stands_before_an_authors_barrier_is_loaded_there():
    compiled = stages_of(barred, {"x": "*fp32:16", "weight": "*fp32:16", "out": "*fp32:16"})
    ops = run(compiled)
    assert not any(tgpu.LATE in op.operation.attributes for op in ops)
    assert count(ops, tgpu.AsyncCopyOp) == 2


@pytest.mark.parametrize("used", [False, True])
def test_warps_meet_at_an_atomic_whose_result_all_take(used: bool):
    types = {"x": "*fp32:16", "count": "*i32", "out": "*fp32:16"}
    assert count(run(stages_of(counted, types, USED=used)), tgpu.AsyncCopyOp) == used


def test_warps_do_not_meet_at_a_scan():
    assert count(run(stages_of(scanned, SOFTMAX, BLOCK=2048)), LoadOp) == 1


def test_kernels_that_exchange_much_of_a_reduction_stay_as_they_are():
    compiled = stages_of(columns, SOFTMAX, 32, BLOCK=512)
    assert count(run(compiled, least=1, room=1 << 20), LoadOp) == 1


def test_a_row_is_one_in_another_shape_too():
    ops = run(stages_of(expanded, SOFTMAX))
    assert (count(ops, LoadOp), count(ops, tgpu.LocalLoadOp)) == (0, 2)


def test_what_a_loop_carries_is_kept():
    assert count(run(stages_of(carried, {**SOFTMAX, "n": "i32"})), LoadOp) == 1


def test_conditions_on_what_was_loaded_are_computed_again():
    comparisons = [op.operation.name for op in run(stages_of(chosen, SOFTMAX))].count("arith.cmpf")
    before = dict(stages_of(chosen, SOFTMAX).stages)["copy_boxes"].count("arith.cmpf")
    # One is of the maximum: NaN is propagated.
    assert comparisons == before + 1


def test_what_is_volatile_is_read_once():
    ops = run(stages_of(watched, SOFTMAX))
    assert (count(ops, LoadOp), count(ops, tgpu.LocalLoadOp)) == (1, 0)


def test_copies_are_complete_before_the_barrier_that_lets_others_write_what_they_read():
    types = {"x": "*fp32:16", "more": "*fp32:16", "out": "*fp32:16"}
    text = dict(stages_of(emptied_behind, types).stages)["insert_barriers"]
    between = text.split("tgpu.async_wait")[1].split('"tile.store"')[0]
    assert 'memory = "all"' in between
