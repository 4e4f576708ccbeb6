"""What an H200 gave where PTX leaves a choice: NaNs, flushes, zeros' signs, fields out of range.

`test_on_device` found these; here they hold without a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.device_atomics import Atomic
from tests.targets.nvptx.emulator.evaluating import evaluate
from tests.targets.nvptx.emulator.on_device import CHIP, run_text
from tiledsl.targets.gpu.emulator.driver import EmulatorDriver
from tiledsl.targets.nvptx.emulator.tensor_core import multiply_add_as_f16, multiply_add_in_f32

_WIDE = {"f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}

# Instruction, operands, result; all as bits.
_MEASURED = """
    add.rn.f64   0xfff8000000000000 0xfff0000000000001   0xfff8000000000001
    add.rz.f64   0x7ff5032c5e7f84d9 0xfff0000000000001   0xfff8000000000001
    sub.rm.f64   0xbff217df30aeb4c6 0x7ff8000000000000   0x7ff8000000000000
    mul.rn.f64   0xfff0000000000005 0x7ff0000000000005   0x7ff8000000000005
    fma.rm.f64   0x8010000000000000 0x7ff0000000000001 0xfff0000000000005   0x7ff8000000000001
    fma.rn.f64   0x13a90e23d6e010bc 0xbfb16ecbae4a4dfd 0x7ff0000000000001   0x7ff8000000000001
    max.f64      0xfff0000000000001 0x7ff0000000000005   0x7ff8000000000005
    abs.f64      0xfff8000000000000   0xfff8000000000000
    neg.f64      0x7ff8000000000000   0x7ff8000000000000
    neg.f32      0x7f800005   0x7fffffff
    abs.bf16     0xff85   0x7fff
    neg.f16x2    0xca867e00   0x4a867fff
    max.xorsign.abs.f32       0xff800005 0x7f800001   0x7fffffff
    max.NaN.xorsign.abs.f32   0xf739a41a 0x7fc00000   0x7fffffff
    mul.rn.ftz.f32   0x80800000 0x3f7fffff   0x80000000
    mul.rp.ftz.f32   0x00800000 0x3f7fffff   0x00000000
    mul.rn.ftz.f16x2   0x3fc6bbff 0x32290400   0x35fc8000
    div.rm.ftz.f32   0x00800000 0xbf800001   0x80000000
    rcp.approx.ftz.f64   0xfff0000000000005   0x8000000000000000
    rsqrt.approx.ftz.f64   0x7ff0000000000005   0x0
    fma.rp.ftz.f32   0x21af1ff6 0x88e28020 0x00800000   0x00800000
    fma.rn.relu.f16   0x8001 0x3c01 0x0001   0x0000
    cvt.f32.bf16     0x7f81   0x7f810000
    cvt.f64.f16      0xfc01   0xfff8040000000000
    cvt.ftz.f64.f32  0xff800001   0x7fffffffe0000000
    cvt.rn.f32.f64   0xfff0000000000001   0xffc00000
    cvt.rn.bf16.f64  0x7ff0000000000005   0x7fc0
    cvt.rn.relu.f16.f32      0x842c9189   0x0000
    cvt.rz.relu.bf16x2.f32   0x80000000 0x415abd93   0x0000415a
    cvt.rna.tf32.f32   0xff800005   0xff800000
    cvt.rna.satfinite.tf32.f32   0x7f800001   0x7f7fe000
    cvt.rn.tf32.f32    0xff800005   0x7fffe000
    bfe.u64   0xcc7d1106af79af4c 0x80000000 0xe   0x0
    bfe.s64   0xc9dd34942d84d6cc 0x80000000 0x16   0xffffffffffffffff
    bfi.b64   0x2 0x21 0x100 0x12   0x21
    testp.normal.f32   0x80000000   0x1
"""
_ROWS = [line.split() for line in _MEASURED.strip().splitlines()]


def _kinds(opcode: str, count: int) -> tuple[list[int], int]:
    """Return the widths of the operands and of the result."""
    words = opcode.split(".")
    if words[0].startswith("bf"):
        return [64] * (count - 2) + [32, 32], 64
    if words[0] == "cvt":
        return [_WIDE[words[-1]]] * count, _WIDE[words[-2]]
    return [_WIDE[words[-1]]] * count, 1 if words[0] == "testp" else _WIDE[words[-1]]


@pytest.mark.parametrize("row", _ROWS, ids=" ".join)
def test_single_instructions(row: list[str]) -> None:
    opcode, *bits, wanted = row
    widths, result = _kinds(opcode, len(bits))
    operands = [
        np.array([int(one, 16)], f"u{width // 8}") for one, width in zip(bits, widths, strict=True)
    ]
    names = ", ".join("{" + name + "}" for name in "dabce"[: len(operands) + 1])
    kind = np.bool_ if result == 1 else np.dtype(f"u{result // 8}")
    (found,) = evaluate(f"{opcode} {names}", *operands, results=(kind,), chip=CHIP)
    assert int(found[0]) == int(wanted, 16), hex(int(found[0]))


@pytest.mark.parametrize(
    ("space", "kind", "memory", "operand", "wanted"),
    [
        ("global", "f64", 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF0000000000001),
        ("global", "f64", 0x7FF0000000000005, 0x3FF0000000000000, 0x7FF0000000000005),
        ("shared", "f64", 0x7FF0000000000005, 0x3FF0000000000000, 0x7FF8000000000005),
        ("global", "f32", 0xFFC00000, 0x41538B32, 0x7FFFFFFF),
        ("shared", "f32", 0xFF800005, 0x400CD538, 0x7FFFFFFF),
        ("global", "bf16", 0xBE60, 0xFF81, 0x7FFF),
    ],
)
def test_nans_of_atomics(space: str, kind: str, memory: int, operand: int, wanted: int) -> None:
    what = Atomic(space, "add", kind, ".noftz" if kind == "bf16" else "")
    arrays = what.arrays()
    arrays[0][:], arrays[1][:] = memory, operand
    left = run_text(EmulatorDriver(CHIP), what.text(CHIP), *arrays, blocks=what.blocks)
    assert {hex(one) for one in left[0].tolist()} == {hex(wanted)}


def test_eight_bit_products_of_a_warp_are_two_of_f16_and_a_sum() -> None:
    a, c = np.zeros((1, 8, 1)), np.zeros((1, 1, 1))
    b = np.ones((8, 1, 1))
    # In f16, 2048 + 1 is 2048: the ones, which are third and fourth of their four, come later.
    a[0, :, 0] = [2048, 0, 1, 0, 0, 0, 0, 0]
    assert multiply_add_as_f16(a, b, c, True)[0, 0, 0] == 2048
    a[0, :, 0] = [2048, 1, 0, 0, 0, 1, 0, 0]
    assert multiply_add_as_f16(a, b, c, True)[0, 0, 0] == 2050
    assert multiply_add_as_f16(a, b, c + 1, True)[0, 0, 0] == 2052  # a tie, to even


def test_the_fourfold_product_is_a_chain_and_a_sum() -> None:
    a = np.array([2.0**24, 1, 1, 1]).reshape(1, 4, 1)
    ones, c = np.ones((4, 1, 1)), np.ones((1, 1, 1))
    assert multiply_add_in_f32(a, ones, c, False)[0, 0, 0] == 2.0**24
    assert multiply_add_in_f32(a[:, ::-1], ones, c, False)[0, 0, 0] == 2.0**24 + 4
    # To f16 it is ((1 + (2**24 + 1)) + 2): each sum but the last is a tie that falls.
    assert multiply_add_in_f32(a * 2.0**-14, ones * 2.0**-2, c * 2.0**-16, True)[0, 0, 0] == 256


def test_zeros_of_the_fourfold_product_keep_their_sign_in_f16() -> None:
    zeros = np.zeros((1, 4, 1))
    found = multiply_add_in_f32(-zeros, zeros.reshape(4, 1, 1), -np.zeros((1, 1, 1)), True)
    assert np.signbit(found).all()
