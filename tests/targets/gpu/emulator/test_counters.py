"""Transactions and bank conflicts of patterns whose cost is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.targets.gpu.emulator.counters import CDNA4_READ_16, CDNA_READ_16, Counters, Rules

_WARP = np.arange(32)


def _counters(rules: Rules | None = None, warps: int = 1, lanes: int = 32) -> Counters:
    return Counters(1, rules or Rules(), np.arange(warps * lanes) // lanes)


def _global(offsets: Any, width: int, rules: Rules | None = None, warps: int = 1) -> Counters:
    counters = _counters(rules, warps)
    address = np.uint64(1 << 40) + np.asarray(offsets, np.uint64)
    counters.global_access(0, address, width, np.arange(len(address)))
    return counters


@pytest.mark.parametrize(
    ("stride", "width", "transactions", "used"),
    [
        (4, 4, 4, 128),  # adjacent words
        (16, 16, 16, 512),  # adjacent vectors
        (32, 4, 32, 128),  # a word of each sector
        (64, 4, 32, 128),
        (0, 4, 1, 4),  # all the same
        (1, 1, 1, 32),
        (2, 4, 3, 66),  # overlapping
    ],
)
def test_transactions_are_distinct_sectors(
    stride: int, width: int, transactions: int, used: int
) -> None:
    counters = _global(_WARP * stride, width)
    assert counters.transactions[0] == transactions
    assert counters.used[0] == used
    assert counters.accesses[0] == 1


def test_an_access_that_straddles_sectors_counts_both() -> None:
    assert _global([28], 8).transactions[0] == 2
    assert _global([24], 8).transactions[0] == 1


def test_warps_do_not_share_a_transaction() -> None:
    counters = _global(np.tile(_WARP * 4, 2), 4, warps=2)
    assert (counters.transactions[0], counters.accesses[0]) == (8, 2)


def test_sectors_are_as_long_as_the_chip_has_them() -> None:
    assert _global(_WARP * 4, 4, Rules(sector_bytes=64)).transactions[0] == 2
    assert _global(_WARP * 4, 4, Rules(sector_bytes=128)).transactions[0] == 1


def _shared(
    offsets: Any,
    width: int,
    rules: Rules | None = None,
    lanes: int = 32,
    write: bool = False,
) -> tuple[int, int, float]:
    counters = _counters(rules, lanes=lanes)
    at = np.asarray(offsets, np.int64)
    counters.shared_access(0, at, width, np.arange(len(at)), write=write)
    return int(counters.phases[0]), int(counters.wavefronts[0]), float(counters.worst[0])


@pytest.mark.parametrize(
    ("stride", "width", "phases", "wavefronts"),
    [
        (4, 4, 1, 1),  # a word of each bank
        (8, 4, 1, 2),  # every second bank
        (128, 4, 1, 32),  # one bank
        (132, 4, 1, 1),  # one bank further each
        (0, 4, 1, 1),  # broadcast
        (2, 2, 1, 1),  # two lanes a word
        (8, 8, 2, 2),  # half warps
        (16, 16, 4, 4),  # quarter warps
        (128, 16, 4, 32),
        (256, 8, 2, 32),
    ],
)
def test_wavefronts_are_the_words_of_the_busiest_bank(
    stride: int, width: int, phases: int, wavefronts: int
) -> None:
    assert _shared(_WARP * stride, width) == (phases, wavefronts, wavefronts / phases)


def test_only_lanes_of_one_phase_conflict() -> None:
    """Half a warp in each half of a row of banks: with 8 bytes a lane nothing collides."""
    offsets = np.where(_WARP < 16, _WARP * 8, (_WARP - 16) * 8 + 128)
    assert _shared(offsets, 8)[1] == 2


@pytest.mark.parametrize(
    ("place", "width", "phases"),
    [
        (_WARP * 0, 8, 1),
        (_WARP * 0, 16, 2),  # each half for itself
        (_WARP & ~1, 8, 1),
        (_WARP & ~2, 16, 2),
        (_WARP & ~4, 8, 2),  # no neighbours
        (np.where(_WARP < 16, _WARP & ~1, _WARP), 8, 2),
        (np.where(_WARP < 16, _WARP & ~1, _WARP), 16, 3),
        (np.where(_WARP < 16, _WARP & ~1, _WARP & ~2), 8, 2),
    ],
)
def test_reads_of_neighbours_at_one_address_share_a_phase(
    place: Any, width: int, phases: int
) -> None:
    rules = Rules(merges=True)
    assert _shared(place * width, width, rules)[0] == phases
    assert _shared(place * width, width, rules, write=True)[0] == width // 4
    assert _shared(place * width, width)[0] == width // 4


def test_sixteen_byte_reads_of_cdna_go_in_its_own_order() -> None:
    rules = Rules(sector_bytes=64, read_16=CDNA_READ_16)
    wave = np.arange(64)
    assert sorted(CDNA_READ_16) == wave.tolist()
    assert _shared(wave * 16, 16, rules, lanes=64)[:2] == (8, 8)
    # Lanes 20-23 at the banks of lanes 0-3, which only a read serves together with them.
    offsets = wave * 16
    offsets[16:20] += 64
    offsets[20:24] -= 64
    assert _shared(offsets, 16, rules, lanes=64)[1] == 10
    assert _shared(offsets, 16, rules, lanes=64, write=True)[1] == 8


def test_gfx950_reads_from_all_its_banks_and_writes_to_half_of_them() -> None:
    rules = Rules(banks=64, phase_bytes=256, writes_halved=True, read_16=CDNA4_READ_16)
    wave = np.arange(64)
    assert sorted(CDNA4_READ_16) == wave.tolist()
    assert _shared(wave * 16, 16, rules, lanes=64)[:2] == (4, 4)
    assert _shared(wave * 16, 16, rules, lanes=64, write=True)[:2] == (8, 8)
    # Lanes 12-15 at the banks of lanes 0-3: a read serves them together.
    offsets = wave * 16
    offsets[12:16] += 256 - 192
    assert _shared(offsets, 16, rules, lanes=64)[1] == 5
    # 128 bytes apart: other banks of a read, the same ones of a write.
    assert _shared(wave % 32 * 4 + wave // 32 * 128, 4, rules, lanes=64)[:2] == (1, 1)
    assert _shared(wave % 2 * 128 + wave // 2 * 4, 4, rules, lanes=64)[:2] == (1, 1)
    assert _shared(wave % 2 * 128 + wave // 2 * 4, 4, rules, lanes=64, write=True)[:2] == (2, 4)


def test_the_worst_access_is_kept_and_sums_are_merged() -> None:
    first, second = _counters(), _counters()
    first.shared_access(0, _WARP * 4, 4, _WARP)
    first.shared_access(0, _WARP * 8, 4, _WARP)
    second.shared_access(0, _WARP * 128, 4, _WARP, write=True)
    first.executed(3, 2)
    second.executed(3, 1)
    second.matrix(0, 4, 1000)
    first.merge(second)
    assert first.worst[0] == 32
    assert (first.phases[0], first.wavefronts[0], first.shared_accesses[0]) == (3, 35, 3)
    assert first.blocks[3] == 3
    assert first.flops[0] == 4000


def test_lanes_that_are_not_active_cost_nothing() -> None:
    counters = _counters()
    counters.shared_access(0, np.array([0, 128]), 4, np.array([3, 9]))
    assert counters.wavefronts[0] == 2
    counters.shared_access(0, np.zeros(0, np.int64), 4, np.zeros(0, np.intp))
    counters.global_access(0, np.zeros(0, np.uint64), 4, np.zeros(0, np.intp))
    assert counters.accesses[0] == 0
