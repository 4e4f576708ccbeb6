"""Atomics as written: names and operands of each generation, with and without a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment, Result, pairs
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]

_LANE = np.arange(64, dtype=np.uint32)


def _run(
    text: str, given: Array, vectors: dict[int, Array], chip: str = "gfx942", **more: Any
) -> tuple[Array, Result]:
    """Run on an array at s[4:5], which is returned, with its descriptor in s[8:11]."""
    size = 32 if chip.startswith("gfx1") else 64
    fragment = Fragment(text, chip, **more)
    array = fragment.array(given)
    address = array.ctypes.data
    descriptor = {8: address & 0xFFFFFFFF, 9: address >> 32, 10: given.nbytes, 11: 0x27000}
    lanes = {register: one[:size] for register, one in vectors.items()}
    return array, fragment.run(lanes, {**pairs(4, array), **descriptor})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("chip", "text"),
    [
        ("gfx90a", "global_atomic_add v4, v1, v2, s[4:5] glc\ns_waitcnt vmcnt(0)"),
        ("gfx942", "global_atomic_add v4, v1, v2, s[4:5] sc0\ns_waitcnt vmcnt(0)"),
        ("gfx942", "buffer_atomic_add v2, v1, s[8:11], 0 offen sc0\ns_waitcnt vmcnt(0)\n"
                   "v_mov_b32_e32 v4, v2"),
        ("gfx1100", "global_atomic_add_u32 v4, v1, v2, s[4:5] glc\ns_waitcnt vmcnt(0)"),
        ("gfx1201", "global_atomic_add_u32 v4, v1, v2, s[4:5] th:TH_ATOMIC_RETURN\n"
                    "s_wait_loadcnt 0x0"),
    ],
)  # fmt: skip
def test_addition_returns_what_was_there(chip: str, text: str, mode: Mode) -> None:
    vectors = {1: 4 * (_LANE % 4), 2: _LANE}
    array, result = _run(text, np.array([5, 6, 7, 8], np.uint32), vectors, chip, mode=mode)
    assert not len(result.findings)
    size = result.machine.wave_size
    expected, returned = [5, 6, 7, 8], list[int]()
    for lane in range(size):
        returned.append(expected[lane % 4])
        expected[lane % 4] += lane
    assert array.tolist() == expected
    assert result.vector(4)[0].tolist() == returned


def test_a_result_is_late_like_a_load_s() -> None:
    text = "global_atomic_add v4, v1, v2, s[4:5] sc0\nv_mov_b32_e32 v5, v4"
    _, result = _run(text, np.zeros(4, np.uint32), {1: 0 * _LANE, 2: _LANE})
    assert result.kinds == [Kind.MISSING_WAIT]


def test_without_a_result_it_counts_with_stores() -> None:
    text = """
        global_load_b32 v4, v1, s[4:5]
        global_atomic_max_u32 v1, v2, s[4:5]
        s_wait_loadcnt 0x1
        v_mov_b32_e32 v5, v4
    """
    array, result = _run(text, np.full(1, 9, np.uint32), {1: 0 * _LANE, 2: _LANE}, "gfx1201")
    assert result.kinds == [Kind.MISSING_WAIT]
    assert array[0] == 31


@pytest.mark.parametrize(
    ("old", "new", "start", "value", "expected"),
    [
        ("smin", "min_i32", -3, -5, -5),
        ("smax", "max_i32", -3, 4, 4),
        ("umin", "min_u32", 7, 3, 3),
        ("and", "and_b32", 0b1100, 0b0110, 0b0100),
        ("or", "or_b32", 0b1100, 0b0110, 0b1110),
        ("xor", "xor_b32", 0b1100, 0b0110, 0b1010),
        ("swap", "swap_b32", 1, 99, 99),
        ("sub", "sub_u32", 9, 4, 5),
        ("inc", "inc_u32", 9, 9, 0),
        ("dec", "dec_u32", 0, 9, 9),
    ],
)
def test_operations_under_both_their_names(
    old: str, new: str, start: int, value: int, expected: int
) -> None:
    for chip, name in (("gfx942", old), ("gfx1100", new), ("gfx1201", new)):
        exec_ = "s_mov_b64 exec, 1" if chip == "gfx942" else "s_mov_b32 exec_lo, 1"
        text = f"{exec_}\nglobal_atomic_{name} v1, v2, s[4:5]"
        vectors = {1: 0 * _LANE, 2: np.full(64, value, np.int32).view(np.uint32)}
        array, result = _run(text, np.array([start], np.int32), vectors, chip)
        assert not len(result.findings)
        assert array[0] == expected, (chip, name)


def test_64_bits() -> None:
    text = "s_mov_b64 exec, 3\nglobal_atomic_add_x2 v[4:5], v1, v[2:3], s[4:5] sc0\n"
    text += "s_waitcnt vmcnt(0)"
    vectors = {1: 0 * _LANE, 2: np.full(64, 0xFFFFFFFF, np.uint32), 3: 0 * _LANE}
    array, result = _run(text, np.array([2], np.uint64), vectors)
    assert not len(result.findings)
    assert array[0] == 2 * 0xFFFFFFFF + 2
    assert (int(result.vector(5)[0, 1]), int(result.vector(4)[0, 1])) == (1, 1)


def test_compare_and_swap_takes_the_new_value_first() -> None:
    for chip, name, flag, wait in (
        ("gfx942", "cmpswap", "sc0", "s_waitcnt vmcnt(0)"),
        ("gfx1100", "cmpswap_b32", "glc", "s_waitcnt vmcnt(0)"),
    ):
        text = f"global_atomic_{name} v4, v1, v[2:3], s[4:5] {flag}\n{wait}"
        vectors = {1: 0 * _LANE, 2: 100 + _LANE, 3: 7 * (_LANE == 1).astype(np.uint32) + 1}
        array, result = _run(text, np.array([8], np.uint32), vectors, chip)
        assert not len(result.findings)
        assert array[0] == 101
        assert result.vector(4)[0, :3].tolist() == [8, 8, 101]


@pytest.mark.parametrize(
    ("name", "kind", "value", "expected"),
    [
        ("add_f32", np.float32, 0.5, 1.0 + 64 * 0.5),
        ("add_f64", np.float64, 0.5, 1.0 + 64 * 0.5),
        ("max_f64", np.float64, 3.5, 3.5),
        ("min_f64", np.float64, -3.5, -3.5),
    ],
)
def test_floats(name: str, kind: Any, value: float, expected: float) -> None:
    words = np.full(64, value, kind).view(np.uint32).reshape(64, -1)
    vectors = {1: 0 * _LANE, **{2 + i: words[:, i].copy() for i in range(words.shape[1])}}
    span = "v2" if words.shape[1] == 1 else "v[2:3]"
    array, result = _run(f"global_atomic_{name} v1, {span}, s[4:5]", np.ones(1, kind), vectors)
    assert not len(result.findings)
    assert array[0] == expected


def test_buffers_drop_atomics_out_of_range() -> None:
    text = "buffer_atomic_add v2, v1, s[8:11], 0 offen sc0\ns_waitcnt vmcnt(0)"
    array, result = _run(text, np.arange(8, dtype=np.uint32), {1: 4 * _LANE, 2: 0 * _LANE + 10})
    assert not len(result.findings)
    assert array.tolist() == [10 + i for i in range(8)]
    assert result.vector(2)[0, 6:9].tolist() == [6, 7, 0]


def test_lds_atomics_with_and_without_a_result() -> None:
    text = """
        ds_write_b32 v1, v3
        ds_add_u32 v1, v2
        ds_add_rtn_u32 v4, v1, v2
        ds_max_rtn_i32 v5, v1, v2
        ds_read_b32 v6, v1
        s_waitcnt lgkmcnt(0)
    """
    vectors = {1: 4 * _LANE, 2: _LANE, 3: 0 * _LANE + 1000}
    result = Fragment(text, "gfx942", lds=256).run(vectors)
    assert not len(result.findings)
    assert np.array_equal(result.vector(4)[0], 1000 + _LANE)
    assert np.array_equal(result.vector(6)[0], 1000 + 2 * _LANE)


def test_lds_compare_and_swap_changed_its_order() -> None:
    """gfx9: what must be there, then the new value; gfx11 the other way round."""
    for chip, name in (("gfx942", "cmpst"), ("gfx1100", "cmpstore")):
        store = "ds_write_b32" if chip == "gfx942" else "ds_store_b32"
        first, second = ("v3", "v2") if chip == "gfx942" else ("v2", "v3")
        text = f"""
            {store} v1, v3
            ds_{name}_rtn_b32 v4, v1, {first}, {second}
            ds_{name}_rtn_b32 v5, v1, {first}, {second}
            s_waitcnt lgkmcnt(0)
        """
        size = 64 if chip == "gfx942" else 32
        lane = _LANE[:size]
        given = {1: 4 * lane, 2: 100 + lane, 3: 0 * lane + 7}
        result = Fragment(text, chip, lds=256).run(given)
        assert not len(result.findings)
        assert (result.vector(4)[0] == 7).all()
        assert np.array_equal(result.vector(5)[0], 100 + lane)


def test_lds_exchange_and_floats() -> None:
    text = """
        ds_write_b32 v1, v3
        ds_add_f32 v1, v2
        ds_wrxchg_rtn_b32 v4, v1, v3
        ds_pk_add_rtn_f16 v5, v1, v6
        ds_read_b32 v7, v1
        s_waitcnt lgkmcnt(0)
    """
    one, half = np.float32(1).view(np.uint32), np.float32(0.5).view(np.uint32)
    pair = np.array([1.0, 2.0], np.float16).view(np.uint32)[0]
    vectors = {1: 4 * _LANE, 2: 0 * _LANE + half, 3: 0 * _LANE + one, 6: 0 * _LANE + pair}
    result = Fragment(text, "gfx942", lds=256).run(vectors)
    assert not len(result.findings)
    assert (result.vector(4, np.float32)[0] == 1.5).all()
    assert (result.vector(5, np.float32)[0] == 1.0).all()
    sums = result.vector(7)[0, :1].view(np.float16).astype(float)
    assert sums.tolist() == [1.0, 3.875]


def test_atomics_of_waves_on_one_word_do_not_race_but_plain_reads_do() -> None:
    text = """
        v_mov_b32_e32 v1, 0
        s_mov_b64 s[4:5], exec
        v_readfirstlane_b32 s6, v0
        s_cmp_eq_u32 s6, 0
        s_cbranch_scc0 others
        ds_write_b32 v1, v1
        others:
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_add_u32 v1, v2
        {between}
        ds_read_b32 v4, v1
        s_waitcnt lgkmcnt(0)
    """
    meet = "s_waitcnt lgkmcnt(0)\ns_barrier"
    for between, kinds in ((meet, []), ("s_nop 0", [Kind.RACE])):
        fragment = Fragment(text.format(between=between), "gfx942", threads=128, lds=4)
        result = fragment.run({2: np.ones(64, np.uint32)})
        assert result.kinds == kinds
        if not kinds:
            assert (result.vector(4) == 128).all()


@pytest.mark.parametrize("base", ["s[4:5]", "off"])
def test_an_atomic_on_half_a_word_may_reach_past_the_end(base: str) -> None:
    place = "v1" if base != "off" else "v[6:7]"
    text = f"""
        v_mov_b32_e32 v6, s4
        v_mov_b32_e32 v7, s5
        s_mov_b64 exec, 1
        global_load_dword v3, {place}, {base} offset:4
        s_waitcnt vmcnt(0)
        v_add_u32_e32 v2, 5, v3
        global_atomic_cmpswap v4, {place}, v[2:3], {base} offset:4 sc0
        s_waitcnt vmcnt(0)
    """
    array, result = _run(text, np.array([1, 2, 3], np.uint16), {1: 0 * _LANE})
    assert not len(result.findings)
    assert array.tolist() == [1, 2, 8]
    other = text.replace("offset:4\n", "offset:4 nt\n", 1).replace("cmpswap", "add_x2")
    _, result = _run(other, np.array([1, 2, 3], np.uint16), {1: 0 * _LANE})
    assert Kind.OUT_OF_BOUNDS in result.kinds
