from __future__ import annotations

import pytest

from tiledsl.targets.nvptx import mma
from tiledsl.targets.nvptx.chips import CHIPS


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_multiplies_halves_bytes_and_doubles(chip: str) -> None:
    found = {(row.a, row.b, row.acc) for row in mma.table(CHIPS[chip]).instructions}
    assert found >= {
        ("f16", "f16", "f32"),
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "f32"),
        ("f32", "f32", "f32"),
        ("f64", "f64", "f64"),
        ("i8", "i8", "i32"),
    }


def test_fp8_came_with_sm_89() -> None:
    for chip in CHIPS.values():
        types = {row.a for row in mma.table(chip).instructions}
        assert ("f8E4M3FN" in types) == (chip.number >= 89)


@pytest.mark.parametrize("chip", CHIPS)
def test_fragments_hold_what_the_instruction_multiplies(chip: str) -> None:
    for row in mma.table(CHIPS[chip]).instructions:
        fragments = row.fragments
        if isinstance(row, mma.Wgmma):
            continue
        assert fragments.b is not None
        assert fragments.a.shape == (row.m, row.k)
        assert fragments.b.shape == (row.k, row.n)
        assert f"m{row.m}n{row.n}k{row.k}" in row.intrinsic
        for layout in (fragments.a, fragments.b, fragments.acc):
            assert layout.is_invertible
            assert layout.lanes == 32


def test_warpgroups_read_b_in_shared_memory_on_hopper_alone() -> None:
    for chip in CHIPS.values():
        rows = [row for row in mma.table(chip).instructions if isinstance(row, mma.Wgmma)]
        assert bool(rows) == (chip.name == "sm_90a")
        for row in rows:
            assert row.from_shared
            assert row.fragments.acc.warps == 4
            assert row.name.startswith(f"wgmma.m64n{row.n}k{row.k}.")


def test_the_deeper_instruction_comes_first() -> None:
    depths = [
        row.k
        for row in mma.table(CHIPS["sm_80"]).matching("f16", "f16", "f32", "ieee", unsigned=False)
        if not row.name.endswith(".swapped")
    ]
    assert depths == [16, 8]
