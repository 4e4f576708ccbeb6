"""The tables of matrix instructions: each entry compiles, and multiplies as its fragments say."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from mlir import ir

from tests.targets.amdgpu.by_hand import POINTER, assembly, element
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_mma import Fragments, mfma, wmma_gfx11, wmma_gfx12
from tiledsl.targets.amdgpu import mma
from tiledsl.targets.amdgpu.chips import CHIPS, Chip
from tiledsl.targets.amdgpu.lower import AmdMachine
from tiledsl.targets.amdgpu.mma import MatrixInstruction
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import PLAIN

BYTES = {"i8": 1, "f8E4M3FN": 1, "f8E5M2": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def entries(chip: str) -> list[MatrixInstruction]:
    listed = [e for e in mma.table(CHIPS[chip]).instructions if isinstance(e, MatrixInstruction)]
    assert len(listed) == len(mma.table(CHIPS[chip]).instructions)
    return listed


def letters(name: str) -> str:
    """Return an instruction's name in a spelling that is the same on all chips."""
    return re.sub(r"[_.]|1k|^v_", "", name.partition(".v8")[0])


def held(element_type: str) -> ir.Type:
    """Return an element type as it is in registers."""
    return ir.Type.parse("i8" if element_type.startswith("f8") else element_type)


def load_operand(machine: AmdMachine, pointer: ir.Value, count: int, type_: ir.Type) -> ir.Value:
    """Return a vector that LLVM knows nothing of, not the same in each lane."""
    parts = max(1, count * emit.width_of(type_) // 128)
    each = emit.vector_of(count // parts, type_)
    lane = machine.thread_id()
    return emit.concatenate(
        [
            machine.load(
                each,
                element(emit.gep(pointer, lane, emit.vector_of(count, type_)), part, each),
                min(16, count // parts * emit.width_of(type_) // 8),
                PLAIN,
                None,
                None,
            )
            for part in range(parts)
        ]
    )


@pytest.mark.parametrize("chip", CHIPS)
def test_every_entry_compiles_to_its_instruction(chip: str) -> None:
    distinct = {entry.intrinsic: entry for entry in entries(chip)}

    def body(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
        for entry in distinct.values():
            counts = [entry.fragments.registers(name) for name in ("a", "b", "acc")]
            types = [held(name) for name in (entry.a, entry.b, entry.acc)]
            a, b, acc = (
                load_operand(machine, arguments[0], count, type_)
                for count, type_ in zip(counts, types, strict=True)
            )
            result = machine.mma(entry, a, b, acc, (False, False))
            for part in range(max(1, counts[2] * emit.width_of(types[2]) // 128)):
                words = 128 // emit.width_of(types[2])
                quarter = emit.part(result, part * words, words)
                lane = machine.thread_id()
                where = emit.gep(arguments[0], lane, result.type)
                address = element(where, part, quarter.type)
                machine.store(quarter, address, 16, PLAIN, None)

    text = assembly(chip, [POINTER], body)
    lines = [line.split()[0] for line in text.splitlines() if re.match("v_mfma|v_wmma", line)]
    assert {letters(line) for line in lines} == {letters(name) for name in distinct}


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_signs_of_integers_reach_the_instruction(chip: str) -> None:
    (entry,) = (e for e in entries(chip) if e.a == "i8" and e.name.endswith(".k16"))
    assert entry.unsigned

    def body(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
        i8, i32 = emit.integer(8), emit.integer(32)
        count = entry.fragments.registers("a")
        a = load_operand(machine, arguments[0], count, i8)
        b = load_operand(machine, arguments[1], count, i8)
        acc = emit.zero(emit.vector_of(8, i32))
        result = machine.mma(entry, a, b, acc, (True, False))
        for part in range(2):
            quarter = emit.part(result, 4 * part, 4)
            machine.store(quarter, element(arguments[0], part, quarter.type), 16, PLAIN, None)

    text = assembly(chip, [POINTER] * 2, body)
    assert re.search(r"v_wmma_i32_16x16x16_iu8.*neg_lo:\[0,1,0\]", text)


def hardware(chip: Chip, entry: MatrixInstruction) -> Fragments:
    """Return the layouts of one instruction as the manuals draw them."""
    if chip.matrix == "wmma":
        return wmma_gfx11() if chip.number < 0x1200 else wmma_gfx12()
    return mfma(entry.m, entry.k, f64=entry.a == "f64")


def registers_of(tile: np.ndarray, layout: LinearLayout) -> np.ndarray:
    """Return what each lane holds of a tile, as (lane, register)."""
    lanes, registers = np.arange(layout.lanes)[:, None], np.arange(layout.registers)
    return tile[layout.apply({"lane": lanes, "register": registers})]


def tile_of(held_: np.ndarray, layout: LinearLayout) -> np.ndarray:
    """Return the tile that lanes hold: the inverse of `registers_of`."""
    tile = np.full(layout.shape, -1, dtype=held_.dtype)
    index = np.arange(tile.size).reshape(tile.shape)
    tile.flat[registers_of(index, layout)] = held_
    return tile


@pytest.mark.parametrize("chip", CHIPS)
def test_what_lanes_hold_by_an_entry_is_what_its_instruction_multiplies(chip: str) -> None:
    random = np.random.default_rng(0)
    for entry in entries(chip):
        fragments, native = entry.fragments, hardware(CHIPS[chip], entry)
        a = random.integers(-9, 9, (entry.m, entry.depth))
        b = random.integers(-9, 9, (entry.depth, entry.n))
        left, right = registers_of(a, fragments.a), registers_of(b, fragments.layout("b"))
        if fragments.swapped:
            left, right = right, left
        acc = np.zeros((entry.m, entry.n), dtype=left.dtype)
        count = fragments.registers("a")
        for step in range(fragments.k_steps):
            here = slice(step * count, (step + 1) * count)
            acc += tile_of(left[:, here], native.a) @ tile_of(right[:, here], native.layout("b"))
        result = tile_of(registers_of(acc, native.acc), fragments.acc)
        np.testing.assert_array_equal(result, a @ b, err_msg=entry.name)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_result_can_be_the_next_left_operand_without_moving_on_mfma_and_gfx12(chip: str) -> None:
    if CHIPS[chip].number in (0x1100, 0x1151):
        return
    table = entries(chip)
    for first in (e for e in table if e.acc == "f32"):
        kept = first.fragments.acc
        follows = [
            e
            for e in table
            if e.acc == "f32"
            and e.m == first.m
            and e.fragments.a.bases["lane"] == kept.bases["lane"]
        ]
        assert follows, first.name


def test_gfx942_has_no_fp8_because_its_encodings_are_other_ones() -> None:
    assert not [e for e in entries("gfx942") if e.a.startswith("f8")]
    for chip in ("gfx950", "gfx1200", "gfx1201"):
        assert len({(e.a, e.b) for e in entries(chip) if e.a.startswith("f8")}) == 4


def test_ieee_precision_of_f32_is_on_cdna_only_and_xf32_on_gfx942_only() -> None:
    for chip in CHIPS:
        precisions = {e.precision for e in entries(chip) if e.a == "f32"}
        wanted = ["ieee"] if CHIPS[chip].matrix == "mfma" else []
        assert precisions == {*wanted, *(["tf32"] if chip == "gfx942" else [])}


@pytest.mark.parametrize("chip", CHIPS)
def test_the_first_entry_for_a_type_lets_a_lane_read_16_bytes(chip: str) -> None:
    firsts: dict[tuple[str, str, str], MatrixInstruction] = {}
    for entry in entries(chip):
        firsts.setdefault((entry.a, entry.b, entry.precision), entry)
    for entry in firsts.values():
        run = entry.fragments.a.contiguous_run(1)
        assert run * BYTES[entry.a] >= 16, entry.name
