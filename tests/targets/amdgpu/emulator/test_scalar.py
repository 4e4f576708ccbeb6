"""Scalar instructions against Python's integers, SCC included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.amdgpu.emulator.fragments import Fragment
from tests.targets.amdgpu.emulator.values import One, Three, Two, some_bits
from tiledsl.dialects.diagnostics import CompilerBug

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def _i32(x: int) -> int:
    return (x ^ 1 << 31) - (1 << 31)


def _i64(x: int) -> int:
    return (x ^ 1 << 63) - (1 << 63)


def _run(text: str, values: list[int], scc: int = 0, chip: str = "gfx942") -> tuple[int, int]:
    """Return s[20:21] and SCC; the values are in s[4:5], s[6:7] and so on."""
    scalars = {20: 0, 21: 0}
    for place, value in enumerate(values):
        scalars[4 + 2 * place] = value & M32
        scalars[5 + 2 * place] = value >> 32
    code = f"s_cmp_eq_u32 {scc}, 1\n{text}\ns_cselect_b32 s22, 1, 0"
    result = Fragment(code, chip).run(scalars=scalars)
    low, high, flag = (int(result.scalar(i)[0]) for i in (20, 21, 22))
    return high << 32 | low, flag


def _overflow(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


_WORDS: dict[str, Three] = {
    "s_add_u32": lambda a, b, c: (a + b, a + b > M32),
    "s_sub_u32": lambda a, b, c: (a - b, a < b),
    "s_add_i32": lambda a, b, c: (a + b, _overflow(_i32(a) + _i32(b))),
    "s_sub_i32": lambda a, b, c: (a - b, _overflow(_i32(a) - _i32(b))),
    "s_addc_u32": lambda a, b, c: (a + b + c, a + b + c > M32),
    "s_subb_u32": lambda a, b, c: (a - b - c, a < b + c),
    "s_min_i32": lambda a, b, c: (min(_i32(a), _i32(b)), _i32(a) < _i32(b)),
    "s_max_u32": lambda a, b, c: (max(a, b), a > b),
    "s_and_b32": lambda a, b, c: (a & b, a & b != 0),
    "s_andn2_b32": lambda a, b, c: (a & ~b, a & ~b & M32 != 0),
    "s_xnor_b32": lambda a, b, c: (~(a ^ b), ~(a ^ b) & M32 != 0),
    "s_lshl_b32": lambda a, b, c: (a << (b & 31), (a << (b & 31)) & M32 != 0),
    "s_lshr_b32": lambda a, b, c: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32": lambda a, b, c: (_i32(a) >> (b & 31), _i32(a) >> (b & 31) != 0),
    "s_lshl3_add_u32": lambda a, b, c: ((a << 3) + b, (a << 3) + b > M32),
    "s_mul_i32": lambda a, b, c: (a * b, c),
    "s_mul_hi_u32": lambda a, b, c: (a * b >> 32, c),
    "s_mul_hi_i32": lambda a, b, c: (_i32(a) * _i32(b) >> 32, c),
    "s_bfm_b32": lambda a, b, c: (((1 << (a & 31)) - 1) << (b & 31), c),
    "s_cselect_b32": lambda a, b, c: (a if c else b, c),
    "s_pack_lh_b32_b16": lambda a, b, c: (a & 0xFFFF | b & 0xFFFF0000, c),
    "s_absdiff_i32": lambda a, b, c: (abs(_i32(a - b & M32)), a != b),
}


@pytest.mark.parametrize("name", _WORDS)
def test_words_and_scc_are_as_with_pythons_integers(name: str) -> None:
    for seed in range(8):
        a, b = (int(x) for x in some_bits(seed, 2))
        carry = seed & 1
        value, flag = _WORDS[name](a, b, carry)
        assert _run(f"{name} s20, s4, s6", [a, b], carry) == (value & M32, int(flag)), (a, b)


def _field(value: int, control: int, bits: int, signed: bool) -> int:
    offset, size = control & (bits - 1), control >> 16 & 0x7F
    size = min(size, bits - offset)
    field = (value >> offset) & ((1 << size) - 1)
    return field - (1 << size) if signed and size and field >> (size - 1) else field


_PAIRS: dict[str, Two] = {
    "s_and_b64 s[20:21], s[4:5], s[6:7]": lambda a, b: a & b,
    "s_lshl_b64 s[20:21], s[4:5], s6": lambda a, b: a << (b & 63),
    "s_lshr_b64 s[20:21], s[4:5], s6": lambda a, b: a >> (b & 63),
    "s_ashr_i64 s[20:21], s[4:5], s6": lambda a, b: _i64(a) >> (b & 63),
    "s_not_b64 s[20:21], s[4:5]": lambda a, b: ~a,
    "s_brev_b64 s[20:21], s[4:5]": lambda a, b: int(f"{a:064b}"[::-1], 2),
    "s_mov_b64 s[20:21], -2": lambda a, b: -2,
    "s_mov_b64 s[20:21], 0x80000000": lambda a, b: 0x80000000,
    "s_mov_b64 s[20:21], 1.0": lambda a, b: 0x3FF0000000000000,
    "s_bfe_u64 s[20:21], s[4:5], s6": lambda a, b: _field(a, b & M32, 64, False),
    "s_bfe_i64 s[20:21], s[4:5], s6": lambda a, b: _field(a, b & M32, 64, True),
}
_COUNTS: dict[str, One] = {
    "s_bcnt1_i32_b64 s20, s[4:5]": lambda a: a.bit_count(),
    "s_bcnt0_i32_b32 s20, s4": lambda a: 32 - (a & M32).bit_count(),
    "s_ff1_i32_b64 s20, s[4:5]": lambda a: (a & -a).bit_length() - 1,
    "s_flbit_i32_b64 s20, s[4:5]": lambda a: 64 - a.bit_length() if a else -1,
    "s_sext_i32_i8 s20, s4": lambda a: (a & 255 ^ 128) - 128,
    "s_wqm_b32 s20, s4": lambda a: sum(0xF << i for i in range(0, 32, 4) if a >> i & 15),
    "s_bfe_u32 s20, s4, 0x80004": lambda a: a >> 4 & 255,
    "s_bfe_i32 s20, s4, 0x80004": lambda a: (a >> 4 & 255 ^ 128) - 128,
    "s_abs_i32 s20, s4": lambda a: abs(_i32(a & M32)),
}


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("text", [*_PAIRS, *_COUNTS])
def test_pairs_and_counts_are_as_with_pythons_integers(text: str, seed: int) -> None:
    a, b = (int(x) for x in some_bits(seed, 2, 64))
    wanted = _PAIRS[text](a, b) & M64 if text in _PAIRS else _COUNTS[text](a) & M32
    assert _run(text, [a, b])[0] == wanted


def test_immediates_of_sixteen_bits_are_signed() -> None:
    assert _run("s_movk_i32 s20, 0xfffe", [])[0] == M32 - 1
    assert _run("s_mov_b32 s20, 5\ns_addk_i32 s20, 0xff80", [])[0] == 5 - 128 & M32
    assert _run("s_cmpk_lt_i32 s4, 0xffff", [M32 - 1])[1] == 1
    assert _run("s_cmpk_gt_u32 s4, 0xffff", [0x10000])[1] == 1


def test_comparisons_and_bits_go_to_scc() -> None:
    assert _run("s_cmp_lt_i32 s4, s6", [M32, 0])[1] == 1
    assert _run("s_cmp_lt_u32 s4, s6", [M32, 0])[1] == 0
    assert _run("s_cmp_lg_u64 s[4:5], s[6:7]", [1 << 40, 0])[1] == 1
    assert _run("s_bitcmp1_b64 s[4:5], 40", [1 << 40])[1] == 1
    assert _run("s_mov_b32 s20, 1\ns_bitset1_b32 s20, 4", [])[0] == 17
    assert _run("s_mov_b32 s20, 1\ns_cmov_b32 s20, 9", [], scc=1)[0] == 9


def test_exec_is_saved_and_changed_together() -> None:
    text = """
        s_mov_b64 exec, 0xff0
        s_and_saveexec_b64 s[20:21], s[4:5]
        v_mov_b32 v1, 1
        s_or_b64 exec, exec, s[20:21]
        v_mov_b32 v2, 2
        s_xor_b64 exec, exec, -1
        v_mov_b32 v2, 3
    """
    result = Fragment(text).run(scalars={4: 0xF0, 5: 0})
    ones = result.vector(1)[0]
    assert np.flatnonzero(ones).tolist() == [4, 5, 6, 7]
    assert result.vector(2)[0].tolist() == [2 if 4 <= lane < 12 else 3 for lane in range(64)]
    assert int(result.scalar(20)[0]) == 0xFF0


def test_hardware_registers_other_than_mode_are_refused() -> None:
    assert _run("s_getreg_b32 s20, hwreg(HW_REG_MODE, 4, 2)", [])[0] == 3
    with pytest.raises(CompilerBug, match="no hardware register but MODE"):
        _run("s_getreg_b32 s20, hwreg(HW_REG_XNACK_MASK)", [])
    with pytest.raises(CompilerBug, match="to nearest even only"):
        _run("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 1", [])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s_add_f32 s20, s4, 1.0", 3.0),
        ("s_fmac_f32 s20, s4, s4", 4.0),
        ("s_fmamk_f32 s20, s4, 0x40400000, s4", 8.0),
        ("s_rndne_f32 s20, 2.5", 2.0),
        ("s_max_num_f32 s20, s4, -s4", 2.0),
        ("s_cvt_f32_i32 s20, -7", -7.0),
        ("v_s_sqrt_f32 s20, s6", 3.0),
    ],
)
def test_scalar_floats_of_rdna4(text: str, wanted: float) -> None:
    found, _ = _run(text, [0x40000000, 0x41100000], chip="gfx1201")
    assert np.uint32(found).view(np.float32) == wanted


def test_scalar_halves_clear_the_upper_half() -> None:
    found, _ = _run("s_mov_b32 s20, -1\ns_add_f16 s20, s4, 1.0", [0xFFFF4000], chip="gfx1201")
    assert found == 0x4200
    assert _run("s_cmp_nlt_f32 s4, s4", [0x7FC00000], chip="gfx1201")[1] == 1
