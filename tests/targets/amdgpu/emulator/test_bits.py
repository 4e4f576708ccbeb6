"""Functions on bits against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.amdgpu.emulator import bits

_UNSIGNED: dict[int, Any] = {32: np.uint32, 64: np.uint64}
_SIGNED: dict[int, Any] = {32: np.int32, 64: np.int64}
sizes = st.sampled_from([32, 64])


def _words(size: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << size) - 1) | st.integers(0, 3).map(lambda n: ((1 << size) - 1) >> n)


def _signed(value: int, size: int) -> int:
    return value - (1 << size) if value >> (size - 1) else value


def _called(function: Callable[..., Any], kind: Any, *values: int) -> int:
    with np.errstate(all="ignore"):
        return int(function(*(np.array([value], kind) for value in values))[0])


@settings(max_examples=150, deadline=None)
@given(st.data(), sizes)
def test_counts_and_positions_of_ones(data: st.DataObject, size: int) -> None:
    value = data.draw(_words(size))
    kind = _UNSIGNED[size]
    digits = f"{value:0{size}b}"
    assert _called(bits.count_ones, kind, value) == digits.count("1")
    assert _called(bits.reverse_bits, kind, value) == int(digits[::-1], 2)
    assert _called(bits.first_one, kind, value) == digits[::-1].find("1")
    assert _called(bits.leading_zeros, kind, value) == digits.find("1")
    other = "0" if digits[0] == "1" else "1"
    assert _called(bits.leading_signs, _SIGNED[size], _signed(value, size)) == digits.find(other)


@settings(max_examples=150, deadline=None)
@given(st.data(), sizes)
def test_fours_of_bits(data: st.DataObject, size: int) -> None:
    value = data.draw(_words(size))
    kind = _UNSIGNED[size]
    fours = f"{value:0{size // 4}x}"
    assert f"{_called(bits.whole_quads, kind, value):0{size // 4}x}" == "".join(
        "0" if four == "0" else "f" for four in fours
    )
    assert _called(bits.quad_mask, kind, value) == int(
        "".join("0" if four == "0" else "1" for four in fours), 2
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), sizes, st.integers(0, 200))
def test_shifts_take_their_count_by_the_width(data: st.DataObject, size: int, count: int) -> None:
    value = data.draw(_words(size))
    kind, mask = _UNSIGNED[size], (1 << size) - 1
    by = count % size
    assert _called(bits.shift_left(size), kind, value, count) == value << by & mask
    assert _called(bits.shift_right(size), kind, value, count) == value >> by
    shifted = bits.shift_right(size, signed=True)
    with np.errstate(all="ignore"):
        found = shifted(np.array([value], kind).view(_SIGNED[size]), np.array([count], np.uint32))
    assert int(found[0]) == _signed(value, size) >> by
    assert _called(bits.bit_at, kind, value, count) == value >> by & 1
    assert _called(bits.set_bit(1), kind, value, count) == value | 1 << by
    assert _called(bits.set_bit(0), kind, value, count) == value & ~(1 << by)


@settings(max_examples=200, deadline=None)
@given(st.data(), sizes, st.integers(0, 63), st.integers(0, 70))
def test_a_field_is_cut_at_the_top_and_keeps_its_sign(
    data: st.DataObject, size: int, offset: int, width: int
) -> None:
    value = data.draw(_words(size))
    control = np.array([offset | width << 16], np.uint32)
    start = offset % size
    held = min(width, size - start)
    field = value >> start & (1 << held) - 1
    unsigned = bits.extract(_UNSIGNED[size])(np.array([value], _UNSIGNED[size]), control)
    assert int(unsigned[0]) == field
    source = np.array([value], _UNSIGNED[size]).view(_SIGNED[size])
    signed = bits.extract(_SIGNED[size])(source, control)
    assert int(signed[0]) == (_signed(field, held) if held else 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100), st.integers(0, 100), sizes)
def test_a_mask_of_a_field(width: int, offset: int, size: int) -> None:
    found = _called(bits.field_mask(_UNSIGNED[size]), _UNSIGNED[size], width, offset)
    assert found == ((1 << width % size) - 1) << offset % size & (1 << size) - 1


@settings(max_examples=100, deadline=None)
@given(_words(32), _words(32))
def test_words_made_of_words(a: int, b: int) -> None:
    high = bits.high_product(np.int64)(
        *(np.array([one], np.uint32).view(np.int32) for one in (a, b))
    )
    assert int(high[0]) == _signed(a, 32) * _signed(b, 32) >> 32
    assert _called(bits.high_product(np.uint64), np.uint32, a, b) == a * b >> 32
    assert _called(bits.pack_halves(1, 0), np.uint32, a, b) == a >> 16 | (b & 0xFFFF) << 16
    assert _called(bits.pack_halves(0, 1), np.uint32, a, b) == a & 0xFFFF | b >> 16 << 16
    twice = "".join(2 * digit for digit in f"{a:032b}")
    assert _called(bits.replicate, np.uint32, a) == int(twice, 2)
    assert _called(bits.sign_extended(8), np.uint32, a) == _signed(a & 0xFF, 8)
    assert _called(bits.sign_extended(16), np.uint32, a) == _signed(a & 0xFFFF, 16)


@pytest.mark.parametrize(
    ("name", "holds"),
    [("eq", "="), ("lg", "<>"), ("ne", "<>"), ("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")],
)
def test_relations_hold_for_what_their_names_say(name: str, holds: str) -> None:
    for a, b, sign in ((1, 2, "<"), (2, 2, "="), (3, 2, ">")):
        assert bits.RELATIONS[name](np.array(a), np.array(b)) == (sign in holds)
