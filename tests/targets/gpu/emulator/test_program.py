"""What the engine may assume of a decoded kernel, of a small one of each vendor's.

Both have a loop that warps leave one after another, what must wait behind it, and comments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tests.targets.nvptx.emulator.running import kernel
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.findings import Findings
from tiledsl.targets.gpu.emulator.launch import Program
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import BasicBlock
from tiledsl.targets.nvptx.emulator import load

_PTX = """
shr.u32 %r1, %t, 5; // the warp
$loop:
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 3;
@%p1 bra $loop; // again
bar.sync 0;
setp.lt.u32 %p1, %t, 7;
@%p1 add.u32 %r2, %r1, 1;
shfl.sync.idx.b32 %r3, %r1, 0, 31, -1;
"""

_AMDGPU = """
    v_readfirstlane_b32 s4, v0
    s_lshr_b32 s4, s4, 6 ; the wave
.LBB0_1:
    s_add_u32 s4, s4, 1
    s_mov_b64 exec, 1
    s_cmp_lt_u32 s4, 3
    s_cbranch_scc1 .LBB0_1 ; again
    s_barrier
    v_mov_b32_e32 v1, s4
"""

_NVIDIA = load(kernel(_PTX, 0, chip="sm_80"), "k", "sm_80", GlobalMemory())
_AMD = Fragment(_AMDGPU, "gfx942").program

_vendors = pytest.mark.parametrize("program", [_NVIDIA, _AMD], ids=["nvidia", "amd"])


def _machine(program: Program) -> Engine:
    """Return what runs the kernel for one block of three warps."""
    size = program.warp_size
    origin = np.zeros((1, 3), np.int64)
    memory = GlobalMemory()
    return program.machine(
        Cohort((1, 1, 1), origin, 3 * size, size, b"", 0, memory, Findings(), atomic=program.atomic)
    )


@pytest.mark.parametrize(
    ("program", "blocks"),
    [
        (
            _NVIDIA,
            [
                ["mov.u32 %t, %tid.x", "shr.u32 %r1, %t, 5"],
                ["add.u32 %r1, %r1, 1", "setp.lt.u32 %p1, %r1, 3", "@%p1 bra $loop"],
                ["bar.sync 0"],
                ["setp.lt.u32 %p1, %t, 7", "@%p1 add.u32 %r2, %r1, 1"],
                ["shfl.sync.idx.b32 %r3, %r1, 0, 31, -1"],
                ["ret"],
            ],
        ),
        (
            _AMD,
            [
                ["v_readfirstlane_b32 s4, v0", "s_lshr_b32 s4, s4, 6"],
                [
                    "s_add_u32 s4, s4, 1",
                    "s_mov_b64 exec, 1",
                    "s_cmp_lt_u32 s4, 3",
                    "s_cbranch_scc1 .LBB0_1",
                ],
                ["s_barrier"],
                ["v_mov_b32_e32 v1, s4", "s_endpgm"],
            ],
        ),
    ],
    ids=["nvidia", "amd"],
)
def test_a_block_ends_where_control_may_leave_or_a_group_may_have_to_wait(
    program: Program, blocks: list[list[str]]
) -> None:
    texts = [[one.text for one in block.instructions] for block in program.blocks]
    assert [one for one in texts if one] == blocks


@_vendors
def test_instructions_are_numbered_in_the_order_of_the_text_and_each_is_in_one_block(
    program: Program,
) -> None:
    in_blocks = [one.index for block in program.blocks for one in block.instructions]
    assert in_blocks == list(range(len(program.instructions)))
    assert [one.index for one in program.instructions] == in_blocks


@_vendors
def test_no_step_changes_who_is_in_the_group(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, groups = _machine(program), set[bytes]()

    def execute(block: BasicBlock) -> int | None:
        group = machine.active.tobytes(), machine.count, machine.full
        for step in block.steps:
            step(machine)
            assert (machine.active.tobytes(), machine.count, machine.full) == group
            groups.add(group[0])
        return block.end(machine)

    monkeypatch.setattr(machine, "execute", execute)
    machine.run()
    assert len(groups) == 3  # of three warps, two and one


@_vendors
def test_an_end_says_where_the_whole_group_goes_or_told_the_scheduler_of_each_unit(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, told = _machine(program), list[Any]()
    scheduler, ends = machine.scheduler, list[int | None]()

    def telling(name: str) -> None:
        inner = getattr(scheduler, name)

        def tell(mask: Any, *where: Any) -> None:
            told.append(mask.astype(int))
            inner(mask, *where)

        monkeypatch.setattr(scheduler, name, tell)

    def execute(block: BasicBlock) -> int | None:
        for step in block.steps:
            step(machine)
        group, already = machine.active.astype(int), len(told)
        following = block.end(machine)
        ends.append(following)
        expected = group if following is None else np.zeros_like(group)
        np.testing.assert_array_equal(sum(told[already:], np.zeros_like(group)), expected)
        return following

    for name in ("go", "park", "exit"):
        telling(name)
    monkeypatch.setattr(machine, "execute", execute)
    machine.run()
    assert not machine.cohort.findings
    assert machine.scheduler.live_count == 0
    assert {one is None for one in ends} == {True, False}
