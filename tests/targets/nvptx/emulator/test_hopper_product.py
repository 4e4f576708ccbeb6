"""A whole Hopper matrix product by hand: TMA, mbarriers, wgmma, stmatrix and a TMA store.

One block of 128 threads computes 64 x 64 of C = A B^T in bf16: thread 0 keeps two stages of A and B
under way, all threads multiply, and the result goes out through a swizzled buffer. Each line that
the kernel cannot do without is left out once: what is left must be a finding or a wrong result.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.nvptx.emulator import tensor_maps
from tiledsl.targets.nvptx.tensor_map import TensorMap

Array = NDArray[Any]
MODES = pytest.mark.parametrize("mode", list(Mode))
_STAGE = 16384
"""64 rows x 128 bytes of A, then of B."""
_DEPTH = 64
_HIGH = 64 << 32 | 1 << 62
"""A descriptor's stride of 1024 bytes and its swizzle of 128; `_HIGH` is for the upper word's bits."""


def _load(stage: int, k: str, guard: str) -> str:
    """Thread 0 fills a stage (a register holds the stage's address, `%r3{stage}`)."""
    full, data = f"%r60+{8 * stage}", f"%r3{stage}"
    tail = f"[%a{{0}}, {{{{{k}, 0}}}}], [{full}];"
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return f"""
@{guard} mbarrier.arrive.expect_tx.shared.b64 _, [{full}], {_STAGE};      // expect
@{guard} {copy} [{data}], {tail.format(0)}                                // load a
@{guard} {copy} [{data}+8192], {tail.format(1)}                           // load b
"""


def _multiply(stage: int, first: bool, commit: str) -> str:
    """Multiply one stage: four products of k = 16."""
    d = ", ".join(f"%c{i}" for i in range(32))
    lines = ["wgmma.fence.sync.aligned;                                   // fence"]
    for step in range(4):
        keep = "%p7" if first and step == 0 else "%p8"
        lines.append(
            f"add.s64 %d30, %d2{stage}, {2 * step}; add.s64 %d31, %d2{stage}, {512 + 2 * step};"
        )
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{d}}}, %d30, %d31, {keep}, 1, 1, 0, 0;"
        )
    lines.append(f"wgmma.commit_group.sync.aligned;                        // {commit}")
    return "\n".join(lines)


def _store() -> str:
    """Round, write the swizzled buffer with stmatrix, and store it."""
    lines = ["and.b32 %r40, %t, 15; shr.u32 %r41, %t, 5; shl.b32 %r42, %r41, 4; add.s32 %r40, %r40, %r42;",
             "shr.u32 %r43, %t, 4; and.b32 %r43, %r43, 1; and.b32 %r44, %r40, 7;",
             "shl.b32 %r45, %r40, 7; add.s32 %r45, %r45, %r32;"]  # fmt: skip
    for j in range(4):
        for i in range(4):
            low, high = f"%c{8 * j + 2 * i}", f"%c{8 * j + 2 * i + 1}"
            lines.append(f"cvt.rn.bf16x2.f32 %r{50 + i}, {high}, {low};")
        lines.append(
            f"add.s32 %r46, %r43, {2 * j}; xor.b32 %r46, %r46, %r44; shl.b32 %r46, %r46, 4;"
        )
        lines.append("add.s32 %r47, %r45, %r46;")
        lines.append("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r47], {%r50, %r51, %r52, %r53};")
    return "\n".join(lines)


def _kernel(steps: int) -> str:
    body = f"""
.reg .f32 %c<32>;
mov.u32 %r60, s; add.s32 %r30, %r60, 1024; add.s32 %r31, %r60, {1024 + _STAGE};
add.s32 %r32, %r60, {1024 + 2 * _STAGE};
setp.eq.u32 %p1, %t, 0; setp.ne.u32 %p7, 0, 0; setp.eq.u32 %p8, 0, 0;
@%p1 mbarrier.init.shared.b64 [%r60], 1;                       // init
@%p1 mbarrier.init.shared.b64 [%r60+8], 1;                     // init
@%p1 fence.mbarrier_init.release.cluster;                      // fence init
bar.sync 0;                                                    // made
"""
    for stage in range(2):
        body += f"""
mul.wide.u32 %d10, %r3{stage}, 1; shr.u64 %d10, %d10, 4; add.s64 %d2{stage}, %d10, {_HIGH - (1 << 64) if _HIGH >> 63 else _HIGH};
"""
    body += "\n".join(f"mov.b32 %c{i}, 0f00000000;" for i in range(32))
    for stage in range(min(2, steps)):
        body += _load(stage, str(stage * _DEPTH), "%p1")
    for step in range(steps):
        stage, parity = step % 2, step // 2 % 2
        # The last wait also covers the product before it, whose stage is not filled again.
        commit, wait = ("may go", "may go") if step == steps - 2 else ("commit", "wait")
        body += f"""
W{step}: mbarrier.try_wait.parity.shared.b64 %p2, [%r60+{8 * stage}], {parity};     // full
@!%p2 bra W{step};
{_multiply(stage, step == 0, commit)}
wgmma.wait_group.sync.aligned 0;                               // {wait}
"""
        if step + 2 < steps:
            body += "bar.sync 0;                                       // free\n"
            body += _load(stage, str((step + 2) * _DEPTH), "%p1")
    return (
        body
        + f"""
{_store()}
fence.proxy.async.shared::cta;                                 // fence store
bar.sync 0;                                                    // written
@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%a2, {{0, 0}}], [%r32];   // store
@%p1 cp.async.bulk.commit_group;                               // commit store
@%p1 cp.async.bulk.wait_group 0;                               // wait store
"""
    )


def _run(body: str, mode: Mode, depth: int = 192, rows: int = 64) -> tuple[Outcome, Array]:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(rows, depth)).astype(ml_dtypes.bfloat16)
    b = rng.normal(size=(64, depth)).astype(ml_dtypes.bfloat16)
    c = np.full((rows, 64), np.nan, ml_dtypes.bfloat16)
    maps = [np.zeros(128, np.uint8) for _ in range(3)]

    def describe(addresses: list[int]) -> None:
        for i, array in enumerate((a, b, c)):
            described = TensorMap(
                "bf16", addresses[3 + i], array.shape[::-1], (array.strides[0],), (64, 64), 128
            )
            maps[i][:] = np.frombuffer(tensor_maps.encode(described), np.uint8)

    outcome = run(
        body, *maps, a, b, c, chip="sm_90a", threads=128, shared=1024 + 2 * _STAGE + 8192,
        mode=mode, describe=describe,
    )  # fmt: skip
    return outcome, a.astype(np.float64) @ b.astype(np.float64).T


def _wrong(outcome: Outcome, exact: Array) -> bool:
    found = outcome.arrays[5].astype(np.float64)
    return not bool(np.allclose(found, exact, rtol=1e-2, atol=1e-1))


@MODES
@pytest.mark.parametrize(("depth", "rows"), [(64, 64), (192, 64), (320, 64), (136, 40)])
def test_a_product_of_tma_and_wgmma_is_right(mode: Mode, depth: int, rows: int) -> None:
    outcome, exact = _run(_kernel(-(-depth // _DEPTH)), mode, depth, rows)
    assert outcome.findings == []
    assert not _wrong(outcome, exact)


_NEEDED = (
    "init", "fence init", "made", "expect", "load a", "load b", "full", "fence", "commit", "wait",
    "free", "fence store", "written", "store", "commit store", "wait store",
)  # fmt: skip


@pytest.mark.parametrize("needed", _NEEDED)
def test_what_the_kernel_cannot_do_without_is_missed(needed: str) -> None:
    """Leave every line with a mark out, one at a time."""
    lines = _kernel(3).splitlines()
    marked = [i for i, line in enumerate(lines) if line.endswith(f"// {needed}")]
    assert marked
    for at in marked:
        left = lines[:at] + lines[at + 1 :]
        if needed == "full":  # its branch with it
            del left[at]
        outcome, exact = _run("\n".join(left), Mode.LAZY)
        assert outcome.findings or _wrong(outcome, exact), lines[at]
