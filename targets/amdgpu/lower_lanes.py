"""Move words between the lanes of a wave: DPP where it can, then permlane, then the LDS unit.

A data-parallel-primitive (DPP) operand is a permutation that the ALU applies while it reads, so a
shuffle by it costs nothing or one move; `ds_swizzle` and `ds_bpermute` go through the LDS unit's
crossbar (no memory) and cost its latency. Which permutations there are:

- CDNA: DPP permutes quads at will, mirrors half rows and rows (a row is 16 lanes), rotates rows.
  Any xor below 16 is one or two of these. `ds_swizzle` does any xor below 32.
- RDNA: DPP does any xor below 16, `v_permlanex16` the rest of a wave of 32.
- gfx950: `v_permlane16_swap` and `v_permlane32_swap` exchange rows between two registers.

All lanes are active wherever words move, because control flow is the same for a whole program.

Sources: LLVM's SIDefines.h (dpp_ctrl, ds_swizzle's modes) and AMDGPUUsage (permlane intrinsics);
AMD's ISA manuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from mlir import ir
from mlir.dialects import arith, llvm, rocdl

from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.gpu import emit

_ROW = 16
_QUAD_PERM = {1: 0xB1, 2: 0x4E, 3: 0x1B}
"""dpp_ctrl of quad_perm:[1,0,3,2], [2,3,0,1] and [3,2,1,0]: xor within four lanes."""
_ROW_MIRROR, _ROW_HALF_MIRROR, _ROW_ROR_8 = 0x140, 0x141, 0x128
_ROW_XMASK = 0x160
"""dpp_ctrl of row_xmask:0, gfx10 and later."""
_CDNA_STEPS = {**_QUAD_PERM, 7: _ROW_HALF_MIRROR, 8: _ROW_ROR_8, 15: _ROW_MIRROR}
"""The xors that one DPP control of CDNA is, by mask: a mirror flips every bit, half a turn one."""
_SWIZZLE_KEEP, _SWIZZLE_XOR_SHIFT = 0x1F, 10
"""ds_swizzle's bit-mask mode: and with bits 0 to 4 of the offset, xor with bits 10 to 14."""


def dpp_controls(chip: Chip, mask: int) -> list[int]:
    """Return the DPP controls that one after the other exchange lanes by a xor below 16."""
    if mask == 0:
        return []
    if chip.matrix == "wmma":
        return [_ROW_XMASK + mask]
    if mask in _CDNA_STEPS:
        return [_CDNA_STEPS[mask]]
    first, second = next(
        pair for pair in product(_CDNA_STEPS, repeat=2) if pair[0] ^ pair[1] == mask
    )
    return [_CDNA_STEPS[first], _CDNA_STEPS[second]]


def shuffle_xor(chip: Chip, thread: ir.Value, word: ir.Value, mask: int) -> ir.Value:
    """Return the word of the lane whose number differs in the bits of `mask`.

    Args:
        chip: What for.
        thread: This thread's number, whose low bits are the lane's.
        word: An i32.
        mask: From 0 to the wave size less one.
    """
    if mask < _ROW:
        for control in dpp_controls(chip, mask):
            word = _dpp(word, control)
        return word
    if chip.matrix == "wmma":
        return _other_row(word, mask % _ROW)
    if chip.number >= 0x950:
        for rows, name in ((16, "permlane16.swap"), (32, "permlane32.swap")):
            if mask & rows:
                word = _swap_rows(thread, word, rows, name)
        return shuffle_xor(chip, thread, word, mask % _ROW)
    if mask < 32:
        offset = emit.i32(mask << _SWIZZLE_XOR_SHIFT | _SWIZZLE_KEEP)
        return rocdl.ds_swizzle(word.type, word, offset)
    return shuffle_index(word, arith.xori(lane_of(chip, thread), emit.i32(mask)))


def shuffle_index(word: ir.Value, lane: ir.Value) -> ir.Value:
    """Return the word of the lane numbered `lane` (i32), which may differ in each lane."""
    address = arith.shli(lane, emit.i32(2))
    return rocdl.ds_bpermute(word.type, address, word)


def permute_bytes(
    first: ir.Value,
    second: ir.Value,
    order: Sequence[int],
    where: ir.Value | None,
    otherwise: Sequence[int],
) -> ir.Value:
    """Return a word of four bytes of two words; see `Machine.permute_bytes`."""
    selector = _word_of(order)
    if where is not None and list(order) != list(otherwise):
        selector = emit.select(where, selector, _word_of(otherwise))
    # The instruction counts from its second operand's bytes.
    return emit.intrinsic("llvm.amdgcn.perm", [second, first, selector], first.type)


def _word_of(numbers: Sequence[int]) -> ir.Value:
    """Return a word of four bytes, the lowest first."""
    return emit.i32(int.from_bytes(bytes(numbers), "little"))


def lane_of(chip: Chip, thread: ir.Value) -> ir.Value:
    """Return the number of a thread within its wave."""
    return arith.andi(thread, emit.i32(chip.wave_size - 1))


def _dpp(word: ir.Value, control: int) -> ir.Value:
    """Read a word permuted; every lane has a source, so what `old` would give never shows."""
    old = llvm.mlir_poison(word.type)
    return rocdl.update_dpp(word.type, old, word, control, 0xF, 0xF, True)


def _other_row(word: ir.Value, mask: int) -> ir.Value:
    """Read from the other row of 16: `v_permlanex16`, whose selectors name a lane of it each."""
    selectors = [
        sum((lane ^ mask) << 4 * (lane % 8) for lane in range(start, start + 8)) for start in (0, 8)
    ]
    low, high = (emit.i32(selector) for selector in selectors)
    old = llvm.mlir_poison(word.type)
    return rocdl.permlanex16(word.type, old, word, low, high, False, True)


def _swap_rows(thread: ir.Value, word: ir.Value, rows: int, name: str) -> ir.Value:
    """Exchange groups of `rows` lanes.

    The instruction exchanges the odd groups of one register with the even ones of another. Given
    the same word twice, it returns the even groups doubled and the odd groups doubled.
    """
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    false = emit.constant(emit.integer(1), 0)
    both = emit.intrinsic(f"llvm.amdgcn.{name}", [word, word, false, false], pair)
    even, odd = (llvm.extractvalue(word.type, both, [i]) for i in range(2))
    in_odd = emit.compare("ne", arith.andi(thread, emit.i32(rows)), emit.i32(0))
    return emit.select(in_odd, even, odd)
