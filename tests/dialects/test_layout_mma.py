from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tiledsl.dialects import layout_mma as mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layout_mma import Fragments, fma_operands, tile_fragment

Place = Callable[[int, int], tuple[int, int]]  # (register, lane) to (row, column)


def agrees(layout: LinearLayout, place: Place) -> bool:
    return all(
        layout(register=r, lane=t) == place(r, t)
        for r in range(layout.registers)
        for t in range(layout.lanes)
    )


# The formulas of the PTX ISA, section "Warp level matrix instructions: mma".


def test_m16n8k16_f16_follows_the_ptx_isa():
    f = mma.mma_sync(16, 8, 16, 16)
    assert agrees(
        f.layout("a"),
        lambda i, t: (
            t // 4 if i < 2 or 4 <= i < 6 else t // 4 + 8,
            t % 4 * 2 + (i & 1) + (8 if i >= 4 else 0),
        ),
    )
    assert agrees(f.layout("b"), lambda i, t: (t % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), t // 4))
    assert agrees(f.acc, lambda i, t: (t // 4 + (8 if i >= 2 else 0), t % 4 * 2 + (i & 1)))


def test_m16n8k32_int8_follows_the_ptx_isa():
    f = mma.mma_sync(16, 8, 32, 8)
    assert agrees(
        f.layout("a"),
        lambda i, t: (
            t // 4 if i < 4 or 8 <= i < 12 else t // 4 + 8,
            t % 4 * 4 + (i & 3) + (16 if i >= 8 else 0),
        ),
    )
    assert agrees(f.layout("b"), lambda i, t: (t % 4 * 4 + (i & 3) + (16 if i >= 4 else 0), t // 4))


def test_m16n8k8_tf32_follows_the_ptx_isa():
    f = mma.mma_sync(16, 8, 8, 32)
    assert agrees(f.layout("a"), lambda i, t: (t // 4 + i % 2 * 8, t % 4 + i // 2 * 4))
    assert agrees(f.layout("b"), lambda i, t: (t % 4 + i * 4, t // 4))


def test_f64_follows_the_ptx_isa():
    small = mma.mma_sync(8, 8, 4, 64)
    assert agrees(small.layout("a"), lambda i, t: (t // 4, t % 4))
    assert agrees(small.layout("b"), lambda i, t: (t % 4, t // 4))
    assert agrees(small.acc, lambda i, t: (t // 4, t % 4 * 2 + i))
    big = mma.mma_sync(16, 8, 16, 64)
    assert agrees(big.layout("a"), lambda i, t: (t // 4 + i % 2 * 8, t % 4 + i // 2 * 4))
    assert agrees(big.layout("b"), lambda i, t: (t % 4 + i * 4, t // 4))


def test_wgmma_follows_the_ptx_isa():
    f = mma.wgmma(128, 16, 16)
    for warp in range(4):
        for t in range(32):
            for d in range(64):
                row = 16 * warp + t // 4 + (8 if d & 2 else 0)
                column = 8 * (d // 4) + t % 4 * 2 + (d & 1)
                assert f.acc(register=d, lane=t, warp=warp) == (row, column)
    a = f.layout("a")
    assert a.shape == (64, 16)
    assert a(register=2, lane=5, warp=3) == (16 * 3 + 1 + 8, 2)
    assert a(register=5, lane=5, warp=0) == (1, 2 + 1 + 8)
    with pytest.raises(ValueError, match="expected an operand in registers, found b"):
        f.layout("b")


def test_a_wgmma_accumulator_holds_the_next_product_s_operand():
    # Registers [8 kk, 8 kk + 8) of the accumulator are k16 step kk of operand a, unshuffled.
    f = mma.wgmma(64, 16, 16)
    acc = f.tile("acc", (64, 64), (4, 1))
    assert acc == f.tile("a", (64, 64), (4, 1))


# Numbers from AMD's matrix instruction calculator.


def test_mfma_operands_hold_runs_along_k():
    assert agrees(mma.mfma(16, 16).layout("a"), lambda i, t: (t % 16, t // 16 * 4 + i))
    assert agrees(mma.mfma(16, 16).layout("b"), lambda i, t: (t // 16 * 4 + i, t % 16))
    assert agrees(mma.mfma(32, 16).layout("a"), lambda i, t: (t % 32, t // 32 * 8 + i))
    assert agrees(mma.mfma(32, 2).layout("a"), lambda i, t: (t % 32, t // 32))


def test_mfma_accumulators_hold_blocks_of_four_rows():
    assert agrees(mma.mfma(16, 16).acc, lambda i, t: (t // 16 * 4 + i, t % 16))
    assert agrees(mma.mfma(32, 8).acc, lambda i, t: (i // 4 * 8 + t // 32 * 4 + i % 4, t % 32))
    assert agrees(mma.mfma(16, 4, f64=True).acc, lambda i, t: (4 * i + t // 16, t % 16))


def test_wmma_of_gfx11_doubles_its_operands_and_alternates_rows():
    f = mma.wmma_gfx11()
    assert agrees(f.layout("a"), lambda i, t: (t % 16, i))
    assert agrees(f.layout("b"), lambda i, t: (i, t % 16))
    assert agrees(f.acc, lambda i, t: (2 * i + t // 16, t % 16))
    assert f.layout("a").free_masks()["lane"] == 16


def test_wmma_of_gfx12_shares_k_between_the_halves():
    f = mma.wmma_gfx12(kwidth=4)
    assert agrees(f.layout("a"), lambda i, t: (t % 16, i // 4 * 8 + t // 16 * 4 + i % 4))
    assert agrees(f.acc, lambda i, t: (i + t // 16 * 8, t % 16))
    assert agrees(mma.wmma_gfx12().layout("b"), lambda i, t: (t // 16 * 8 + i, t % 16))
    assert mma.wmma_gfx12(32).layout("a").shape == (16, 32)


# What a whole tile computes, instruction by instruction.

FRAGMENTS = {
    "m16n8k16": (mma.mma_sync(16, 8, 16, 16), mma.mma_sync(16, 8, 16, 16)),
    "m16n8k8 tf32": (mma.mma_sync(16, 8, 8, 32), mma.mma_sync(16, 8, 8, 32)),
    "m16n8k32": (mma.mma_sync(16, 8, 32, 8), mma.mma_sync(16, 8, 32, 8)),
    "m8n8k4": (mma.mma_sync(8, 8, 4, 64), mma.mma_sync(8, 8, 4, 64)),
    "mfma 16": (mma.mfma(16, 16), mma.mfma(16, 16)),
    "mfma 16 wide": (mma.mfma(16, 16, 8), mma.mfma(16, 16)),
    "mfma 32 wide": (mma.mfma(32, 8, 8), mma.mfma(32, 8)),
    "mfma f64": (mma.mfma(16, 4, f64=True), mma.mfma(16, 4, f64=True)),
    "wmma 11": (mma.wmma_gfx11(), mma.wmma_gfx11()),
    "wmma 12": (mma.wmma_gfx12(), mma.wmma_gfx12(kwidth=4)),
}


def multiply_by_instructions(
    used: Fragments, real: Fragments, m: int, n: int, k: int, warps: tuple[int, int]
) -> None:
    """Multiply with slices of registers as lowering does, each product as the hardware does it."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    at, bt, ct = (
        used.tile("a", (m, k), warps),
        used.tile("b", (k, n), warps),
        used.tile("acc", (m, n), warps),
    )
    fa, fb, fc = used.registers("a"), used.registers("b"), used.registers("acc")
    counts = used.counts(m, n, k, warps)
    real_m, real_k = real.layout("a").shape
    real_n = real.acc.shape[1]
    for warp in range(warps[0] * warps[1]):
        ra, rb = a.ravel()[at.table[0, warp]], b.ravel()[bt.table[0, warp]]
        result = np.zeros((ct.lanes, ct.registers), dtype=np.int64)
        for i, j, kk in np.ndindex(counts):
            tiny_a = np.zeros(real_m * real_k, dtype=np.int64)
            tiny_b = np.zeros(real_k * real_n, dtype=np.int64)
            ia, ib, ic = i * counts[2] + kk, j * counts[2] + kk, i * counts[1] + j
            tiny_a[real.layout("a").table[0, 0]] = ra[:, ia * fa : (ia + 1) * fa]
            tiny_b[real.layout("b").table[0, 0]] = rb[:, ib * fb : (ib + 1) * fb]
            product = tiny_a.reshape(real_m, real_k) @ tiny_b.reshape(real_k, real_n)
            result[:, ic * fc : (ic + 1) * fc] += product.ravel()[real.acc.table[0, 0]]
        assert np.array_equal(result, (a @ b).ravel()[ct.table[0, warp]])


@pytest.mark.parametrize("name", FRAGMENTS)
@pytest.mark.parametrize("warps", [(1, 1), (2, 2), (4, 1), (1, 4)])
def test_instructions_on_register_slices_make_the_whole_product(name: str, warps: tuple[int, int]):
    multiply_by_instructions(*FRAGMENTS[name], 64, 64, 32, warps)


@pytest.mark.parametrize("name", ["m16n8k16", "mfma 16"])
def test_warps_beyond_a_small_tile_hold_copies(name: str):
    multiply_by_instructions(*FRAGMENTS[name], 16, 16, 32, (4, 4))


def test_swapped_fragments_hold_rows_and_multiply_the_transposes():
    f = mma.mfma(32, 8)
    s = f.swap()
    assert s.swapped
    assert s.acc.contiguous_run(1) == 4
    assert f.acc.contiguous_run(1) == 1
    a, b = s.layout("a"), s.layout("b")
    # The hardware's a is our b turned, and so on.
    assert b.transpose((1, 0)) == f.layout("a")
    assert a.transpose((1, 0)) == f.layout("b")
    assert s.acc.transpose((1, 0)) == f.acc
    assert s.swap() == f


def test_wgmma_tiles_spread_warpgroups_along_m_then_n():
    f = mma.wgmma(128, 16, 16)
    acc = f.tile("acc", (128, 256), (8, 2))
    assert acc.bases["warp"] == ((16, 0), (32, 0), (64, 0), (0, 128))
    assert acc.is_invertible
    assert f.tile("a", (128, 64), (8, 2)).bases["warp"] == ((16, 0), (32, 0), (64, 0), (0, 0))
    assert f.counts(128, 256, 64, (8, 2)) == (1, 1, 4)
    with pytest.raises(ValueError, match="expected at least 4 warps along m, found 2"):
        f.tile("acc", (128, 256), (2, 2))


def test_batches_are_held_whole_by_every_warp():
    f = mma.mma_sync(16, 8, 16, 16)
    flat = f.tile("a", (32, 32), (2, 1))
    batched = f.tile("a", (4, 32, 32), (2, 1))
    assert batched.registers == 4 * flat.registers
    assert batched.table[0, 1, 3, flat.registers + 5] == 32 * 32 + flat.table[0, 1, 3, 5]


def test_a_tile_smaller_than_the_instruction_is_refused():
    f = mma.mma_sync(16, 8, 16, 16)
    with pytest.raises(
        ValueError, match=r"expected a tile of at least \(16, 16\), found \(8, 16\)"
    ):
        tile_fragment(f.layout("a"), (8, 16), (1, 1), "a")


@pytest.mark.parametrize("batch", [(), (2,)])
def test_fma_operands_multiply_without_exchange(batch: tuple[int, ...]):
    m, n, k = 16, 8, 4
    ones = (1,) * len(batch)
    acc = blocked((*batch, m, n), (*ones, 2, 2), (*ones, 4, 8), (*ones, 2, 1))
    f = fma_operands(acc, k)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (*batch, m, k)), rng.integers(-9, 9, (*batch, k, n))
    held_a, held_b = a.ravel()[f.a.table], b.ravel()[f.b.table]
    rows, columns = f.a.registers // k, f.b.registers // k
    result = sum(
        held_a[..., i * rows + f.a_row] * held_b[..., i * columns + f.b_column] for i in range(k)
    )
    assert np.array_equal(result, (a @ b).ravel()[acc.table])


# Rows in another order.


def banks(a: LinearLayout, register: int) -> list[int]:
    """Give the banks that a warp's lanes read where TMA put lines of 32 rows, each a step along k."""
    found: list[int] = []
    for lane in range(32):
        row, k = a(register=register, lane=lane)
        found.append((row % 32 // 4 ^ k % 8) * 4 + row % 4)
    return found


def test_spread_rows_are_read_from_all_banks():
    f = mma.wgmma(64, 8, 32)
    tile = f.spread_rows().tile("a", (64, 32), (4, 1))
    assert all(len(set(banks(tile, i))) == 32 for i in range(tile.registers))
    plain = f.tile("a", (64, 32), (4, 1))
    assert all(len(set(banks(plain, i))) == 16 for i in range(plain.registers))


@pytest.mark.parametrize("instruction", [mma.wgmma(64, 8, 32), mma.mfma(32, 2)])
def test_spread_rows_are_the_same_rows_in_another_order_in_a_and_in_the_sums(
    instruction: Fragments,
):
    spread = instruction.spread_rows()
    order = {row: row & ~0b10100 | (row & 4) << 2 | (row & 16) >> 2 for row in range(64)}
    assert sorted(order.values()) == list(range(64))
    for old, new in ((instruction.layout("a"), spread.layout("a")), (instruction.acc, spread.acc)):
        for register, lane, warp in product(*map(range, (old.registers, old.lanes, old.warps))):
            row, column = old(register=register, lane=lane, warp=warp)
            assert new(register=register, lane=lane, warp=warp) == (order[row], column)
    assert (spread.b, spread.k_steps, spread.swapped) == (
        instruction.b, instruction.k_steps, instruction.swapped,
    )  # fmt: skip


def test_fewer_than_32_rows_cannot_be_spread():
    with pytest.raises(ValueError, match="expected at least 32 rows, found 16"):
        mma.mma_sync(16, 8, 8, 32).spread_rows()
