"""The lanes of an access: which, whose, and their registers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.amdgpu.emulator import lanes
from tiledsl.targets.amdgpu.emulator.lanes import Lanes
from tiledsl.targets.amdgpu.emulator.machine import Machine

_WAVES, _SIZE = 3, 64


def machine(mask: int = -1) -> Machine:
    """Return a machine of three waves at its start, with the same lanes of each active."""
    fragment = Fragment("s_nop 0", "gfx942", threads=_WAVES * _SIZE)
    made = fragment.run({5: _numbers(), 6: 1000 + _numbers()}).machine
    each = np.array([mask >> lane & 1 for lane in range(_SIZE)], np.bool_)
    made.lanes = np.broadcast_to(each, (_WAVES, _SIZE)).copy()
    made.lanes_full = mask == -1
    return made


def _numbers() -> np.ndarray:
    return np.arange(_WAVES * _SIZE, dtype=np.uint32).reshape(_WAVES, _SIZE)


_SOME = 0b1010
_CHOSEN = [1, 3, 65, 67, 129, 131]


def test_all_lanes_of_all_waves_are_whole_registers() -> None:
    found = lanes.active(machine())
    assert found.where is None
    assert found.threads.tolist() == list(range(_WAVES * _SIZE))
    assert found.pick(_numbers()).tolist() == list(range(_WAVES * _SIZE))


def test_some_lanes_are_flat_numbers() -> None:
    found = lanes.active(machine(_SOME))
    assert found.where is not None
    assert found.where.tolist() == found.threads.tolist() == _CHOSEN
    assert found.pick(_numbers()).tolist() == _CHOSEN


@pytest.mark.parametrize("mask", [-1, _SOME])
def test_a_value_a_wave_becomes_one_a_lane(mask: int) -> None:
    found = lanes.active(machine(mask))
    waves = found.threads // _SIZE
    assert np.array_equal(found.spread(np.array([7, 8, 9]), _SIZE), 7 + waves)
    assert found.spread(np.array([5]), _SIZE).tolist() == [5] * len(waves)
    assert found.of(None, _SIZE) is None
    second = found.of(np.array([False, True, False]), _SIZE)
    assert second is not None
    assert np.array_equal(second, waves == 1)


@pytest.mark.parametrize("mask", [-1, _SOME])
def test_lanes_of_lanes_keep_their_numbers_and_threads(mask: int) -> None:
    found = lanes.active(machine(mask))
    some = found.some(found.threads % 64 == 3)
    assert some.where is not None
    assert some.where.tolist() == some.threads.tolist() == [3, 67, 131]


@pytest.mark.parametrize("mask", [-1, _SOME])
def test_registers_come_as_rows_of_words_and_go_back_for_these_lanes_only(mask: int) -> None:
    owner = machine(mask)
    found = lanes.active(owner)
    words = lanes.get_words(owner, found, 5, 2)
    assert np.array_equal(words, np.stack([found.threads, 1000 + found.threads], axis=1))
    lanes.put_words(owner, found, 5, 2, words + np.uint32(7))
    off = ~owner.lanes
    assert np.array_equal(owner.vgpr[5], _numbers() + 7 * owner.lanes)
    assert np.array_equal(owner.vgpr[6][off], 1000 + _numbers()[off])
    lanes.put_words(owner, found, 6, 1, None)
    assert (owner.vgpr[6][owner.lanes] == lanes.POISON).all()
    assert np.array_equal(owner.vgpr[6][off], 1000 + _numbers()[off])


@pytest.mark.parametrize("mask", [-1, _SOME])
@pytest.mark.parametrize("half", [0, 1])
def test_half_a_register_is_written_beside_the_other_half(half: int, mask: int) -> None:
    owner = machine(mask)
    owner.vgpr[5] = 0x11112222
    found = lanes.active(owner)
    lanes.put_half(owner, found, 5, half, np.full((len(found.threads), 1), 0xABCD, np.uint32))
    written = 0xABCD2222 if half else 0x1111ABCD
    assert np.array_equal(owner.vgpr[5], np.where(owner.lanes, written, 0x11112222))
    lanes.put_half(owner, found, 5, half, None)
    poisoned = 0xFFFF2222 if half else 0x1111FFFF
    assert np.array_equal(owner.vgpr[5], np.where(owner.lanes, poisoned, 0x11112222))


def test_addresses_take_two_registers_and_elements_one_or_two_words() -> None:
    owner = machine(_SOME)
    addresses = lanes.address64(owner, lanes.active(owner), 5)
    assert addresses.tolist() == [(1000 + lane) << 32 | lane for lane in _CHOSEN]
    words = lanes.as_words(addresses)
    assert words.tolist() == [[lane, 1000 + lane] for lane in _CHOSEN]
    assert np.array_equal(lanes.as_bits(words), addresses)
    assert lanes.as_bits(words[:, :1]).dtype == np.uint32


def test_no_lane_at_all_is_no_rows() -> None:
    owner = machine(0)
    none = lanes.active(owner)
    assert isinstance(none, Lanes)
    assert lanes.get_words(owner, none, 5, 2).shape == (0, 2)
    addresses = lanes.address64(owner, none, 5)
    assert lanes.as_words(addresses).shape == (0, 2)
    assert lanes.as_bits(lanes.as_words(addresses)).shape == (0,)
