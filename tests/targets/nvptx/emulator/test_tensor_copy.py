"""TMA: boxes and bytes into shared memory and out of it, swizzled, clipped, waited for or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator import tensor_copy, tensor_maps
from tiledsl.targets.nvptx.tensor_map import TensorMap

Array = NDArray[Any]
MODES = pytest.mark.parametrize("mode", list(Mode))


def _map_of(array: Array, element: str, box: tuple[int, ...], swizzle: int, address: int) -> bytes:
    """Describe an array; its last axis is the map's first."""
    shape, strides = array.shape[::-1], array.strides[::-1][1:]
    return tensor_maps.encode(TensorMap(element, address, shape, strides, box, swizzle))


def _with_map(
    body: str, tensor: Array, element: str, box: tuple[int, ...], *others: Array,
    swizzle: int = 0, mode: Mode = Mode.EAGER, described: Array | None = None, **more: Any,
) -> Outcome:  # fmt: skip
    """Run a body whose `%a0` is a tensor map of `%a1`, or of the part of it that is `described`."""
    map_bytes = np.zeros(128, np.uint8)

    def describe(addresses: list[int]) -> None:
        data = _map_of(
            tensor if described is None else described, element, box, swizzle, addresses[1]
        )
        map_bytes[:] = np.frombuffer(data, np.uint8)

    return run(
        body, map_bytes, tensor, *others, chip="sm_90a", mode=mode, describe=describe, **more
    )


_INIT = """
mov.u32 %r60, s;
setp.eq.s32 %p1, %t, 0;
@%p1 mbarrier.init.shared.b64 [%r60], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""


def _wait(parity: int = 0, label: str = "W") -> str:
    return f"""
{label}: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], {parity};
@!%p2 bra {label};
"""


def _dump(size: int, start: int, array: str, threads: int = 32) -> str:
    """Copy shared memory from byte `start` to an array, 16 bytes a thread and round."""
    lines = ["shl.b32 %r40, %t, 4; add.s32 %r41, %r60, %r40;",
             f"mul.wide.u32 %d40, %r40, 1; add.s64 %d41, {array}, %d40;"]  # fmt: skip
    for at in range(0, size, threads * 16):
        lines.append(f"ld.shared.v4.b32 {{%r50,%r51,%r52,%r53}}, [%r41+{start + at}];")
        lines.append(f"st.global.v4.b32 [%d41+{at}], {{%r50,%r51,%r52,%r53}};")
    return "\n".join(lines)


def _load_2d(x: int, y: int, size: int, *, wait: str = _wait(), expect: int | None = None) -> str:
    return f"""
{_INIT}
add.s32 %r61, %r60, 1024;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], {size if expect is None else expect};
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r61], [%a0, {{{x}, {y}}}], [%r60];
{wait}
{_dump(size, 1024, "%a2")}
"""


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(-5, 7).map(lambda x: 8 * x), st.integers(-20, 30)),
    st.sampled_from([0, 32, 64, 128]),
    st.sampled_from(list(Mode)),
)
def test_a_box_is_clipped_and_swizzled(corner: tuple[int, int], swizzle: int, mode: Mode) -> None:
    x, y = corner
    rng = np.random.default_rng(0)
    tensor = rng.normal(size=(24, 56)).astype(np.float16)
    width = (swizzle or 64) // 2
    size = 16 * width * 2
    outcome = _with_map(
        _load_2d(x, y, size), tensor, "f16", (width, 16), np.zeros(size, np.uint8),
        swizzle=swizzle, shared=1024 + size, mode=mode,
    )  # fmt: skip
    assert outcome.findings == []
    expected = np.zeros((16, width), np.float16)
    for i, j in np.ndindex(16, width):
        if 0 <= y + i < 24 and 0 <= x + j < 56:
            expected[i, j] = tensor[y + i, x + j]
    found = outcome.arrays[2]
    units = max(swizzle // 16, 1)
    for at in range(0, size, 16):
        place = at ^ ((at >> 7) & (units - 1)) << 4
        assert (found[place : place + 16] == expected.view(np.uint8).ravel()[at : at + 16]).all()


@MODES
def test_data_that_nobody_waits_for_is_found(mode: Mode) -> None:
    tensor = np.ones((16, 32), np.float16)
    outcome = _with_map(
        _load_2d(0, 0, 1024, wait=""), tensor, "f16", (32, 16), np.zeros(1024, np.uint8),
        shared=2048, mode=mode,
    )  # fmt: skip
    assert Kind.MISSING_WAIT in outcome.kinds


def test_too_few_bytes_expected_never_end_the_phase() -> None:
    tensor = np.ones((16, 32), np.float16)
    outcome = _with_map(
        _load_2d(0, 0, 1024, expect=2048), tensor, "f16", (32, 16), np.zeros(1024, np.uint8),
        shared=2048,
    )  # fmt: skip
    assert outcome.kinds == {Kind.DEADLOCK}
    assert "mbarrier at byte 0" in outcome.findings[0].message


def test_an_mbarrier_that_was_not_fenced_is_found() -> None:
    body = _load_2d(0, 0, 1024).replace("@%p1 fence.mbarrier_init.release.cluster;", "")
    tensor = np.ones((16, 32), np.float16)
    outcome = _with_map(body, tensor, "f16", (32, 16), np.zeros(1024, np.uint8), shared=2048)
    assert outcome.kinds == {Kind.MISSING_WAIT}


def test_what_is_no_tensor_map_is_found() -> None:
    body = _load_2d(0, 0, 1024, wait="").replace("%a0, {", "%a1, {")
    outcome = _with_map(
        body, np.ones((64, 32), np.float16), "f16", (32, 16), np.zeros(1024, np.uint8), shared=2048
    )
    assert Kind.UNDEFINED in outcome.kinds


def test_a_box_that_is_not_aligned_is_found() -> None:
    body = _load_2d(0, 0, 1024, wait="").replace("%r60, 1024;", "%r60, 1040;")
    outcome = _with_map(
        body, np.ones((64, 32), np.float16), "f16", (32, 16), np.zeros(1024, np.uint8), shared=4096
    )
    assert Kind.MISALIGNED in outcome.kinds


def test_a_box_that_begins_in_the_middle_of_16_bytes_is_found() -> None:
    body = _load_2d(3, 0, 1024)
    outcome = _with_map(
        body, np.ones((64, 32), np.float16), "f16", (32, 16), np.zeros(1024, np.uint8), shared=2048
    )
    assert Kind.MISALIGNED in outcome.kinds


def _store_2d(x: int, y: int, size: int, *, proxy: str = "fence.proxy.async.shared::cta;",
              wait: str = "cp.async.bulk.wait_group 0;", what: str = "cp.async.bulk",
              tail: str = "") -> str:  # fmt: skip
    lines = ["mov.u32 %r60, s; setp.eq.s32 %p1, %t, 0; shl.b32 %r40, %t, 4;",
             "add.s32 %r41, %r60, %r40; mul.wide.u32 %d40, %r40, 1; add.s64 %d41, %a2, %d40;"]  # fmt: skip
    for at in range(0, size, 512):
        lines.append(f"ld.global.v4.b32 {{%r50,%r51,%r52,%r53}}, [%d41+{at}];")
        lines.append(f"st.shared.v4.b32 [%r41+{at}], {{%r50,%r51,%r52,%r53}};")
    return (
        "\n".join(lines)
        + f"""
{proxy}
bar.sync 0;
@%p1 {what}.tensor.2d.global.shared::cta.{tail}tile.bulk_group [%a0, {{{x}, {y}}}], [%r60];
@%p1 cp.async.bulk.commit_group;
@%p1 {wait}
"""
    )


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.integers(-5, 7).map(lambda x: 8 * x), st.integers(-20, 30)),
    st.sampled_from(list(Mode)),
)
def test_a_box_is_stored_where_the_tensor_is(corner: tuple[int, int], mode: Mode) -> None:
    x, y = corner
    box = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float16)
    outcome = _with_map(
        _store_2d(x, y, 1024), np.zeros((24, 56), np.float16), "f16", (32, 16),
        box.view(np.uint8).ravel(), shared=1024, mode=mode,
    )  # fmt: skip
    assert outcome.findings == []
    expected = np.zeros((24, 56), np.float16)
    for i, j in np.ndindex(16, 32):
        if 0 <= y + i < 24 and 0 <= x + j < 56:
            expected[y + i, x + j] = box[i, j]
    np.testing.assert_array_equal(outcome.arrays[1], expected)


def test_a_box_is_stored_in_whole_pieces_of_16_bytes() -> None:
    """As an H200 does: past the end of a row that ends within a piece."""
    box = np.arange(1, 16 * 32 + 1, dtype=np.float16).reshape(16, 32)
    whole = np.zeros((24, 64), np.float16)
    tensor = whole[:, :45]
    outcome = _with_map(
        _store_2d(32, 8, 1024), whole, "f16", (32, 16), box.view(np.uint8).ravel(), shared=1024,
        described=tensor,
    )  # fmt: skip
    expected = whole.copy()
    expected[8:24, 32:48] = box[:, :16]
    np.testing.assert_array_equal(outcome.arrays[1], expected)


@MODES
@pytest.mark.parametrize(
    ("operation", "function"),
    [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("xor", np.bitwise_xor)],
)
def test_a_box_is_combined_with_the_tensor(mode: Mode, operation: str, function: Any) -> None:
    rng = np.random.default_rng(0)
    tensor: Array = rng.integers(-100, 100, (16, 32)).astype(np.int32)
    box: Array = rng.integers(-100, 100, (16, 16)).astype(np.int32)
    outcome = _with_map(
        _store_2d(8, 0, 1024, what="cp.reduce.async.bulk", tail=f"{operation}."),
        tensor, "i32", (16, 16), box.view(np.uint8).ravel(), shared=1024, mode=mode,
    )  # fmt: skip
    expected = tensor.copy()
    expected[:, 8:24] = function(tensor[:, 8:24], box)
    np.testing.assert_array_equal(outcome.arrays[1], expected)


def _faulty_store(mode: Mode = Mode.EAGER, **faults: str) -> Outcome:
    return _with_map(
        _store_2d(0, 0, 1024, **faults), np.zeros((16, 32), np.float16), "f16", (32, 16),
        np.zeros(1024, np.uint8), shared=1024, mode=mode,
    )  # fmt: skip


def test_a_store_without_the_proxy_fence_is_found() -> None:
    assert _faulty_store(proxy="").kinds == {Kind.MISSING_WAIT}


@MODES
def test_a_block_that_ends_while_its_store_reads_is_found(mode: Mode) -> None:
    outcome = _faulty_store(mode, wait="bra E; E:")
    assert outcome.kinds == {Kind.MISSING_WAIT}
    assert "ended" in outcome.findings[0].message


@MODES
def test_shared_memory_may_be_reused_once_it_was_read(mode: Mode) -> None:
    reuse = "cp.async.bulk.wait_group.read 0;\nbar.sync 0;\nst.shared.b32 [%r41], %t;"
    assert _faulty_store(mode, wait=reuse).findings == []
    early = "bar.sync 0;\nst.shared.b32 [%r41], %t;\n@%p1 cp.async.bulk.wait_group 0;"
    assert _faulty_store(mode, wait="mov.u32 %r1, 0;\n" + early).kinds == {Kind.MISSING_WAIT}


@MODES
def test_bytes_come_and_go(mode: Mode) -> None:
    data = np.arange(512, dtype=np.uint32)
    outcome = run(
        f"""
{_INIT}
add.s32 %r61, %r60, 128;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], 2048;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r61], [%a0], 2048, [%r60];
{_wait()}
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%a1+64], [%r61], 1024;
@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a1+2048], [%r61], 512;
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group 0;
""",
        data, np.ones(1024, np.uint32), chip="sm_90a", shared=4096, mode=mode,
    )  # fmt: skip
    assert outcome.findings == []
    found = outcome.arrays[1]
    np.testing.assert_array_equal(found[16 : 16 + 256], data[:256])
    np.testing.assert_array_equal(found[512 : 512 + 128], data[:128] + 1)
    assert (found[:16] == 1).all()


def test_bytes_out_of_bounds_are_found() -> None:
    outcome = run(
        f"""{_INIT} add.s32 %r61, %r60, 128;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r61], [%a0+16], 64, [%r60];
""",
        np.zeros(16, np.uint32), chip="sm_90a", shared=1024,
    )  # fmt: skip
    assert outcome.kinds == {Kind.OUT_OF_BOUNDS}


@pytest.mark.parametrize("rank", [1, 3, 4, 5])
def test_boxes_of_every_rank(rank: int) -> None:
    shape = (5, 4, 3, 6, 24)[-rank:]
    tensor: Array = np.random.default_rng(0).integers(0, 255, shape).astype(np.float32)
    box = (8, 2, 2, 3, 2)[:rank]
    corner = (4, 3, -1, 2, 4)[:rank]
    count = int(np.prod(box))
    coordinates = ", ".join(str(one) for one in corner)
    body = f"""
{_INIT}
add.s32 %r61, %r60, 128;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], {4 * count};
@%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r61], [%a0, {{{coordinates}}}], [%r60];
{_wait()}
setp.lt.s32 %p3, %t, {max(count // 4, 1)};
@%p3 bra GO;
ret;
GO:
{_dump(min(4 * count, 512), 128, "%a2")}
"""
    outcome = _with_map(body, tensor, "f32", box, np.zeros(count, np.float32), shared=4096)
    assert outcome.findings == []
    expected = np.zeros(box[::-1], np.float32)
    for at in np.ndindex(expected.shape):
        place = tuple(i + c for i, c in zip(at, corner[::-1], strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            expected[at] = tensor[place]
    np.testing.assert_array_equal(outcome.arrays[2][:128], expected.ravel()[:128])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_tensor_map_survives_its_encoding(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 5))
    tensor = TensorMap(
        data.draw(st.sampled_from(["f16", "bf16", "f8E5M2", "i64"])),
        16 * data.draw(st.integers(0, 2**40)),
        tuple(data.draw(st.integers(1, 2**32)) for _ in range(rank)),
        tuple(16 * data.draw(st.integers(1, 2**30)) for _ in range(rank - 1)),
        (16, *(data.draw(st.integers(1, 256)) for _ in range(rank - 1))),
    )
    encoded = tensor_maps.encode(tensor)
    assert len(encoded) == 128
    assert tensor_maps.decode(encoded) == tensor
    assert tensor_maps.decode(bytes(128)) is None


def test_rows_outside_are_not_looked_at() -> None:
    tensor = TensorMap("f32", 1 << 20, (8, 4), (32,), (8, 4))
    box = tensor_copy.box_at(tensor, [-2, 2])
    assert box.inside.tolist() == [True, True, False, False]
    assert (box.first, box.count) == (2, 6)
    assert box.rows[:2].tolist() == [(1 << 20) + 64, (1 << 20) + 96]
