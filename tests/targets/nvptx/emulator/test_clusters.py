"""Clusters: addresses of other blocks, their barrier, remote mbarriers and multicast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, in_clusters, kernel, run
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator import tensor_maps
from tiledsl.targets.nvptx.tensor_map import TensorMap

MODES = pytest.mark.parametrize("mode", list(Mode))
_RANK = """
mov.u32 %r60, s; mov.u32 %r59, %cluster_ctarank; mov.u32 %r58, %ctaid.x;
mul.lo.s32 %r1, %r58, 128; shl.b32 %r2, %t, 2; add.s32 %r1, %r1, %r2;
mul.wide.u32 %d1, %r1, 1; add.s64 %d2, %a0, %d1; setp.eq.u32 %p1, %t, 0;
"""
_MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"


def _run(
    body: str, *arrays: NDArray[Any], blocks: int = 4, cluster: int = 2, **more: Any
) -> Outcome:
    every = arrays or (np.zeros(32 * blocks, np.uint32),)
    text = kernel(_RANK + body, len(every), chip="sm_90a", shared=4096)
    return run("", *every, text=in_clusters(text, cluster), chip="sm_90a", blocks=blocks, **more)


def test_blocks_know_their_place() -> None:
    body = "mov.u32 %r3, %cluster_nctarank; shl.b32 %r3, %r3, 8; or.b32 %r3, %r3, %r59; st.global.u32 [%d2], %r3;"
    outcome = _run(body)
    assert outcome.arrays[0][::32].tolist() == [0x200, 0x201, 0x200, 0x201]


def test_a_mapped_address_names_its_block() -> None:
    body = """
    xor.b32 %r3, %r59, 1; mapa.shared::cluster.u32 %r4, %r60, %r3;
    getctarank.shared::cluster.u32 %r5, %r4; getctarank.shared::cluster.u32 %r6, %r60;
    shl.b32 %r6, %r6, 8; or.b32 %r5, %r5, %r6; st.global.u32 [%d2], %r5;
    """
    assert _run(body).arrays[0][::32].tolist() == [1, 0x100, 1, 0x100]


_REMOTE = """
@%p1 mbarrier.init.shared.b64 [%r60], 1;
@%p1 fence.mbarrier_init.release.cluster;
{meet}
xor.b32 %r3, %r59, 1; mapa.shared::cluster.u32 %r4, %r60, %r3;
@%p1 mbarrier.arrive.shared::cluster.b64 _, [%r4];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], 0; @!%p2 bra W;
{meet}
st.global.u32 [%d2], %t;
"""


@MODES
def test_a_block_arrives_at_another_ones_mbarrier(mode: Mode) -> None:
    outcome = _run(_REMOTE.replace("{meet}", _MEET), mode=mode)
    assert outcome.findings == []
    assert outcome.arrays[0].tolist() == [*range(32)] * 4


def test_a_block_must_not_end_before_others_have_arrived() -> None:
    early = _REMOTE.replace("{meet}", _MEET, 1).replace("{meet}", "")
    alone = early.replace("W: mbarrier.try_wait", "bra E; W: mbarrier.try_wait")
    outcome = _run(alone.replace("st.global", "E: st.global"))
    assert "may have ended" in outcome.findings[0].message


@MODES
def test_what_a_block_stored_others_see_behind_the_barrier_of_their_cluster(mode: Mode) -> None:
    body = "st.global.u32 [%d2], %r59; {meet} xor.b32 %r3, %r59, 1; sub.s32 %r3, %r3, %r59;"
    body += "mul.wide.s32 %d3, %r3, 128; add.s64 %d3, %d2, %d3; ld.global.u32 %r4, [%d3];"
    body += "{meet} st.global.u32 [%d2], %r4;"
    outcome = _run(body.replace("{meet}", _MEET), mode=mode)
    assert outcome.findings == []
    assert outcome.arrays[0][::32].tolist() == [1, 0, 1, 0]
    assert Kind.RACE in _run(body.replace("{meet}", "", 1).replace("{meet}", _MEET)).kinds
    assert Kind.RACE in _run(body.replace("{meet}", _MEET, 1).replace("{meet}", "")).kinds


def test_an_mbarrier_of_another_block_must_be_made_first() -> None:
    late = _REMOTE.replace("{meet}", "", 1).replace("{meet}", _MEET)
    turned = late.replace("@%p1 mbarrier.init", "setp.eq.u32 %p9, %r59, 9; @%p9 mbarrier.init")
    assert Kind.UNDEFINED in _run(turned).kinds


def test_a_block_that_never_comes_is_waited_for_in_vain() -> None:
    body = "setp.eq.u32 %p3, %r59, 0; @!%p3 bra E; barrier.cluster.arrive; bra W; E: bra E2;"
    body += "W: barrier.cluster.wait; E2: st.global.u32 [%d2], %t;"
    outcome = _run(body)  # those that ended count as arrived
    assert outcome.findings == []
    spin = body.replace(
        "E2:", "E2: mbarrier.test_wait.parity.shared.b64 %p4, [%r60], 0; @!%p4 bra E2;"
    )
    start = "@%p1 mbarrier.init.shared.b64 [%r60], 1; bar.sync 0;"
    assert _run(start + spin).kinds == {Kind.ENDLESS}


@MODES
def test_one_load_goes_to_every_block_of_a_mask(mode: Mode) -> None:
    tensor = np.arange(64 * 32, dtype=np.uint32).reshape(64, 32)
    map_bytes = np.zeros(128, np.uint8)

    def describe(addresses: list[int]) -> None:
        described = TensorMap("ui32", addresses[2], (32, 64), (128,), (32, 8))
        map_bytes[:] = np.frombuffer(tensor_maps.encode(described), np.uint8)

    body = f"""
    @%p1 mbarrier.init.shared.b64 [%r60], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    {_MEET}
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r60], 2048;
    {_MEET}
    mov.u16 %h1, 3; shl.b32 %r3, %r58, 3; shl.b32 %r4, %r59, 10; add.s32 %r5, %r60, %r4;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
      [%r5+1024], [%a1, {{0, %r3}}], [%r60], %h1;
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], 0; @!%p2 bra W;
    shl.b32 %r6, %t, 2; add.s32 %r6, %r6, %r60; mov.u32 %r9, 0; mov.u32 %r10, 0;
    L: ld.shared.u32 %r7, [%r6+1024]; add.s32 %r9, %r9, %r7; add.s32 %r6, %r6, 128;
    add.s32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 16; @%p3 bra L;
    st.global.u32 [%d2], %r9;
    {_MEET}
    """
    outcome = _run(body, np.zeros(128, np.uint32), map_bytes, tensor, describe=describe, mode=mode)
    assert outcome.findings == []
    found = outcome.arrays[0].reshape(4, 32)
    for block in range(4):
        start = block // 2 * 16
        np.testing.assert_array_equal(found[block], tensor[start : start + 16].sum(0))


def test_a_cluster_that_is_cut_is_an_error() -> None:
    body = """xor.b32 %r3, %r59, 1; mapa.shared::cluster.u32 %r4, %r60, %r3;
    @%p1 mbarrier.arrive.shared::cluster.b64 _, [%r4];"""
    with pytest.raises(CompilerBug, match="not emulated together"):
        _run(body, blocks=3)
