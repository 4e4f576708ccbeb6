"""Vector integer instructions against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.amdgpu.emulator.fragments import Fragment
from tests.targets.amdgpu.emulator.values import (
    One,
    Oracle,
    Three,
    Two,
    computed,
    evaluated,
    lanes_of,
    some_bits,
)

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def _i32(x: int) -> int:
    return (x ^ 1 << 31) - (1 << 31)


def _i64(x: int) -> int:
    return (x ^ 1 << 63) - (1 << 63)


def _i16(x: int) -> int:
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def _i24(x: int) -> int:
    return ((x & 0xFFFFFF) ^ 0x800000) - 0x800000


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def _bfe(a: int, offset: int, width: int) -> int:
    return (a >> (offset & 31)) & ((1 << (width & 31)) - 1)


def _bfe_signed(a: int, offset: int, width: int) -> int:
    width &= 31
    field = (_i32(a) >> (offset & 31)) & ((1 << width) - 1)
    return field - (1 << width) if width and field >> (width - 1) else field


def _perm(a: int, b: int, selector: int) -> int:
    both, result = a << 32 | b, 0
    for place in range(4):
        chosen = selector >> 8 * place & 255
        if chosen >= 13:
            byte = 255
        elif chosen == 12:
            byte = 0
        elif chosen >= 8:
            byte = 255 * (both >> (16 * (chosen - 8) + 15) & 1)
        else:
            byte = both >> 8 * chosen & 255
        result |= byte << 8 * place
    return result


def _leading_signs(a: int) -> int:
    value = _i32(a)
    size = (~value if value < 0 else value).bit_length()
    return 32 - size if size else -1


_ONE: dict[str, One] = {
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": lambda a: 32 - a.bit_length() if a else -1,
    "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1 if a else -1,
    "v_ffbh_i32": _leading_signs,
    "v_mov_b32": lambda a: a,
}
_TWO: dict[str, Two] = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: _i32(b) >> (a & 31),
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: _i32(a) * _i32(b) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24": lambda a, b: _i24(a) * _i24(b),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_hi_i32_i24": lambda a, b: _i24(a) * _i24(b) >> 32,
    "v_min_u32": min,
    "v_max_u32": max,
    "v_min_i32": lambda a, b: min(_i32(a), _i32(b)),
    "v_max_i32": lambda a, b: max(_i32(a), _i32(b)),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
}
_THREE: dict[str, Three] = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b & M32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32": _bfe,
    "v_bfe_i32": _bfe_signed,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_perm_b32": _perm,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: _i24(a) * _i24(b) + c,
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_med3_i32": lambda a, b, c: sorted((_i32(a), _i32(b), _i32(c)))[1],
    "v_min3_i32": lambda a, b, c: min(_i32(a), _i32(b), _i32(c)),
    "v_max3_u32": max,
    "v_sad_u8": lambda a, b, c: c + sum(
        abs((a >> 8 * i & 255) - (b >> 8 * i & 255)) for i in range(4)
    ),
    "v_mad_u32_u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_mad_i32_i16": lambda a, b, c: _i16(a) * _i16(b) + c,
}  # fmt: skip
_EVERY: dict[str, Oracle] = {**_ONE, **_TWO, **_THREE}


@pytest.mark.parametrize("name", _EVERY)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_words_are_computed_as_with_pythons_integers(name: str, seed: int) -> None:
    count = 1 if name in _ONE else 2 if name in _TWO else 3
    sources = [some_bits(seed + i, 64) for i in range(count)]
    names = ", ".join(f"v{4 + i}" for i in range(count))
    found = computed(f"{name} v1, {names}", *sources)
    wanted = [
        evaluated(_EVERY[name], *(int(x) for x in row)) & M32 for row in zip(*sources, strict=True)
    ]
    assert found.tolist() == wanted


_WIDE: dict[str, tuple[str, Oracle]] = {
    "v_lshlrev_b64 v[2:3], v6, v[4:5]": ("qw", lambda a, b: a << (b & 63)),
    "v_lshrrev_b64 v[2:3], v6, v[4:5]": ("qw", lambda a, b: a >> (b & 63)),
    "v_ashrrev_i64 v[2:3], v6, v[4:5]": ("qw", lambda a, b: _i64(a) >> (b & 63)),
    "v_lshl_add_u64 v[2:3], v[4:5], 3, v[6:7]": ("qq", lambda a, b: (a << 3) + b),
    "v_mad_u64_u32 v[2:3], vcc, v4, v5, v[6:7]": ("wwq", lambda a, b, c: a * b + c),
    "v_mad_i64_i32 v[2:3], vcc, v4, v5, v[6:7]": ("wwq", lambda a, b, c: _i32(a) * _i32(b) + c),
    "v_mov_b64 v[2:3], v[4:5]": ("q", lambda a: a),
    "v_add_co_u32 v2, vcc, v4, v6\nv_addc_co_u32 v3, vcc, v5, v7, vcc": ("qq", lambda a, b: a + b),
    "v_sub_co_u32 v2, vcc, v4, v6\nv_subb_co_u32 v3, vcc, v5, v7, vcc": ("qq", lambda a, b: a - b),
    "v_subrev_co_u32 v2, vcc, v4, v6\nv_subbrev_co_u32 v3, vcc, v5, v7, vcc": (
        "qq", lambda a, b: b - a
    ),
    "v_pk_mov_b32 v[2:3], v[4:5], v[6:7] op_sel:[1,0]": (
        "qq", lambda a, b: a >> 32 | (b & M32) << 32
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", _WIDE)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_pairs_are_computed_as_with_pythons_integers(text: str, seed: int) -> None:
    kinds, oracle = _WIDE[text]
    sources = [some_bits(seed + i, 64, 64 if kind == "q" else 32) for i, kind in enumerate(kinds)]
    found = computed(text, *sources, kind=np.uint64)
    wanted = [evaluated(oracle, *(int(x) for x in row)) & M64 for row in zip(*sources, strict=True)]
    assert found.tolist() == wanted


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_clamped_sums_stay_at_the_ends(seed: int) -> None:
    a, b = some_bits(seed, 64), some_bits(seed + 1, 64)
    rows = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    found = computed("v_add_u32 v1, v4, v5 clamp", a, b)
    assert found.tolist() == [min(x + y, M32) for x, y in rows]
    found = computed("v_sub_u32 v1, v4, v5 clamp", a, b)
    assert found.tolist() == [max(x - y, 0) for x, y in rows]
    found = computed("v_add_i32 v1, v4, v5 clamp", a, b, kind=np.int32)
    ends = -(1 << 31), (1 << 31) - 1
    assert found.tolist() == [_clamp(_i32(x) + _i32(y), *ends) for x, y in rows]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), table=st.integers(0, 255))
def test_bitop3_looks_every_bit_up(seed: int, table: int) -> None:
    sources = [some_bits(seed + i, 64) for i in range(3)]
    found = computed(f"v_bitop3_b32 v1, v4, v5, v6 bitop3:{table:#x}", *sources, chip="gfx950")
    for lane in range(64):
        a, b, c = (int(source[lane]) for source in sources)
        bits = [
            table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1 for i in range(32)
        ]
        assert int(found[lane]) == sum(bit << i for i, bit in enumerate(bits))


@pytest.mark.parametrize("chip", ["gfx942", "gfx1201"])
def test_mbcnt_counts_lower_lanes(chip: str) -> None:
    lanes = lanes_of(chip)
    text = "v_mbcnt_lo_u32_b32 v1, -1, 10\nv_mbcnt_hi_u32_b32 v1, -1, v1"
    found = computed(text, np.zeros(lanes, np.uint32), chip=chip)
    assert found.tolist() == [10 + lane for lane in range(lanes)]


def test_sixteen_bits_zero_the_other_half_on_cdna_only() -> None:
    a = np.full(32, 7, np.uint16)
    full = np.full(32, 0xABCD0000, np.uint32)
    older = computed("v_add_u16_e32 v1, v4, v4", a, chip="gfx942", before=full)
    assert set(older.tolist()) == {14}
    fused = computed("v_mad_u16 v1, v4, v4, 1", a, chip="gfx942", before=full)
    assert set(fused.tolist()) == {0xABCD0000 | 50}
    true16 = computed("v_add_nc_u16 v1.l, v4.l, v4.l", a, chip="gfx1100", before=full)
    assert set(true16.tolist()) == {0xABCD000E}
    upper = computed("v_add_nc_u16 v1.h, v4.l, v4.l", a, chip="gfx1100", before=full)
    assert set(upper.tolist()) == {0x000E0000}


def test_swap_changes_two_registers() -> None:
    result = Fragment("v_swap_b32 v4, v5").run(
        {4: np.full(64, 1, np.uint32), 5: np.full(64, 2, np.uint32)}
    )
    assert (result.vector(4)[0, 0], result.vector(5)[0, 0]) == (2, 1)


def test_lanes_are_read_and_written_by_scalars() -> None:
    result = Fragment(
        """
        s_mov_b64 exec, 0xf0
        v_readfirstlane_b32 s4, v4
        v_readlane_b32 s5, v4, 9
        v_writelane_b32 v4, 77, 63
        s_mov_b64 exec, 0
        v_readfirstlane_b32 s6, v4
        """
    ).run({4: np.arange(64, dtype=np.uint32) + 100})
    assert [int(result.scalar(i)[0]) for i in (4, 5, 6)] == [104, 109, 100]
    assert result.vector(4)[0, 63] == 77
