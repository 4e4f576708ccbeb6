"""Barriers: what they order, and that they do not order what LDS has still to do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment, Result
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_OLD = ("ds_write_b32 v1, v0", "s_waitcnt lgkmcnt(0)", "s_barrier", "ds_read_b32 v3, v2",
        "s_waitcnt lgkmcnt(0)")  # fmt: skip
_NEW = ("ds_store_b32 v1, v0", "s_wait_dscnt 0x0", "s_barrier_signal -1\ns_barrier_wait -1",
        "ds_load_b32 v3, v2", "s_wait_dscnt 0x0")  # fmt: skip
_TEXTS = {"gfx942": _OLD, "gfx1100": _OLD, "gfx1201": _NEW}
_SIZES = {"gfx942": 64, "gfx1100": 32, "gfx1201": 32}


def _exchange(chip: str, without: int | None = None, mode: Mode = Mode.LAZY) -> Result:
    """Let two waves read each other's words; leave one line out."""
    lines = [line for i, line in enumerate(_TEXTS[chip]) if i != without]
    size = _SIZES[chip]
    fragment = Fragment("\n".join(lines), chip, threads=2 * size, blocks=2, lds=8 * size, mode=mode)
    thread = np.tile(np.arange(2 * size), 2).reshape(-1, size)
    other = (thread + size) % (2 * size)
    return fragment.run({1: (4 * thread).astype(np.uint32), 2: (4 * other).astype(np.uint32)})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", list(_TEXTS))
def test_a_barrier_lets_waves_read_each_other_s_words(chip: str, mode: Mode) -> None:
    result = _exchange(chip, mode=mode)
    assert not len(result.findings)
    size = _SIZES[chip]
    assert np.array_equal(result.vector(3)[0], size + np.arange(size))
    assert np.array_equal(result.vector(3)[1], np.arange(size))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", list(_TEXTS))
@pytest.mark.parametrize("without", [1, 2], ids=["wait", "barrier"])
def test_without_its_wait_or_barrier_it_is_a_race(chip: str, mode: Mode, without: int) -> None:
    result = _exchange(chip, without, mode)
    assert result.kinds == [Kind.RACE]
    assert "no barrier after the write by warp" in str(result.findings.all()[0])


def test_reads_too_must_be_done_before_a_barrier_lets_others_overwrite() -> None:
    text = """
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v3, v2
        {wait}
        s_barrier
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
    """
    thread = np.arange(128).reshape(2, 64).astype(np.uint32)
    given = {1: 4 * thread, 2: 4 * thread[::-1]}
    for wait, kinds in (("s_waitcnt lgkmcnt(0)", []), ("s_nop 0", [Kind.RACE])):
        result = Fragment(text.format(wait=wait), "gfx942", threads=128, lds=512).run(given)
        assert result.kinds == kinds


def test_a_wait_that_leaves_some_is_precise() -> None:
    """The write that lgkmcnt(1) covers may be read by others, the read after it is still its own."""
    text = """
        ds_write_b32 v1, v0
        ds_write_b32 v1, v0 offset:512
        s_waitcnt lgkmcnt(1)
        s_barrier
        ds_read_b32 v3, v2 {offset}
        s_waitcnt lgkmcnt(0)
    """
    thread = np.arange(128).reshape(2, 64).astype(np.uint32)
    given = {1: 4 * thread, 2: 4 * thread[::-1]}
    for offset, kinds in (("", []), ("offset:512", [Kind.RACE])):
        result = Fragment(text.format(offset=offset), "gfx942", threads=128, lds=1024).run(given)
        assert result.kinds == kinds


def test_what_one_wave_does_between_signal_and_wait_needs_the_next_barrier() -> None:
    text = """
        s_barrier_signal -1
        ds_store_b32 v1, v0
        s_wait_dscnt 0x0
        s_barrier_wait -1
        ds_load_b32 v3, v2
        s_wait_dscnt 0x0
    """
    thread = np.arange(64).reshape(2, 32).astype(np.uint32)
    given = {1: 4 * thread, 2: 4 * thread[::-1]}
    result = Fragment(text, "gfx1201", threads=64, lds=256).run(given)
    assert result.kinds == [Kind.RACE]


def test_a_barrier_that_a_wave_never_reaches_waits_only_for_those_that_live() -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 out
        s_barrier
        v_mov_b32_e32 v3, 7
        out:
    """
    result = Fragment(text, "gfx942", threads=192).run()
    assert not len(result.findings)
    assert result.vector(3)[:, 0].tolist() == [0, 7, 7]


def test_waves_that_wait_at_a_barrier_that_others_wait_before_are_deadlocked() -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 other
        s_barrier_signal -1
        s_barrier_wait -1
        other:
        s_barrier_wait -1
    """
    result = Fragment(text, "gfx1201", threads=64).run()
    assert Kind.DEADLOCK in result.kinds
    assert "s_barrier_signal" in str(result.findings.all()[-1])


def test_fences_are_known_and_do_nothing() -> None:
    old = "buffer_wbl2 sc1\nbuffer_inv sc1\nbuffer_wbinvl1\nbuffer_gl0_inv\nbuffer_gl1_inv"
    assert not len(Fragment(old, "gfx942").run().findings)
    new = "global_wb scope:SCOPE_DEV\nglobal_inv scope:SCOPE_SE\nglobal_wbinv scope:SCOPE_SYS"
    assert not len(Fragment(new, "gfx1201").run().findings)


def test_other_barriers_than_the_workgroup_s_are_refused() -> None:
    with pytest.raises(CompilerBug, match="no other barrier than -1"):
        Fragment("s_barrier_signal -3", "gfx1201")
