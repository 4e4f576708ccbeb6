"""What constant operands stand for, in operands of each kind."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.emulator import constants
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.text import Constant, parse_operand
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass


def context() -> Context:
    """Return what decoders know after an `s_getpc_b64` before address 1000."""
    symbols = {"table": 1 << 33 | 5000, "table@got": 3000, "kernel": 400}
    made = Context(CHIPS["gfx942"], 64, 0, False, symbols, anchor=1000)
    made.instruction = Instruction(0, "s_add_u32 s0, s0, x", InstructionClass.INTEGER, None)
    return made


def _bits(text: str, kind: str) -> int:
    operand = parse_operand(text)
    assert isinstance(operand, Constant)
    return constants.constant_bits(operand, kind)


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("1", "u32", 1),
        ("-1", "i32", 0xFFFFFFFF),
        ("-1", "u16", 0xFFFF),
        ("-16", "i64", (1 << 64) - 16),
        ("64", "f32", 64),
        ("0.5", "f32", 0x3F000000),
        ("0.5", "u32", 0x3F000000),
        ("-4.0", "f16", 0xC400),
        ("-4.0", "bf16", 0xC080),
        ("1.0", "f64", 0x3FF0000000000000),
        ("0.15915494", "f32", 0x3E22F983),
        ("0x3ff00000", "f64", 0x3FF0000000000000),
        ("0x80000000", "i64", 0xFFFFFFFF80000000),
        ("0x80000000", "u64", 0x80000000),
        ("0x3c00", "f16", 0x3C00),
    ],
)
def test_numbers_stand_for_bits_as_the_operand_has_them(text: str, kind: str, bits: int) -> None:
    assert _bits(text, kind) == bits


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("null", "u64", 0),
        ("src_shared_base", "u64", constants.SHARED_BASE),
        ("src_private_base", "u64", constants.PRIVATE_BASE),
        ("src_shared_base", "u32", 0),
        ("table@rel32@lo+4", "u32", 4000),
        ("table@rel32@hi+12", "u32", 2),
        ("table+24@rel32@lo+4", "u32", 4024),
        ("table@gotpcrel32@lo+4", "u32", 2000),
        ("table@gotpcrel32@hi+12", "u32", 0),
        ("(table-kernel)&4294967295", "u32", 4600),
        ("(table-kernel)>>32", "u32", 2),
        ("(kernel-table)>>32", "u32", 0xFFFFFFFD),
        ("src_scc", "u32", None),
        ("v1", "u32", None),
    ],
)
def test_names_stand_for_addresses_and_distances(text: str, kind: str, bits: int | None) -> None:
    assert constants.fixed_bits(parse_operand(text), kind, context()) == bits


def test_a_symbol_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(CompilerBug, match="there is no symbol nowhere"):
        constants.fixed_bits(parse_operand("nowhere@rel32@lo+4"), "u32", context())


def test_a_fixed_integer_has_its_sign_and_a_register_has_no_fixed_value() -> None:
    assert constants.fixed(parse_operand("-3"), "i32", context()) == -3
    assert constants.fixed(parse_operand("-3"), "b32", context()) == (1 << 32) - 3
    assert constants.fixed(parse_operand("0xffff8000"), "i64", context()) == -0x8000
    assert constants.fixed(parse_operand("s3"), "i32", context()) is None


def test_arrays_of_a_constant_have_its_kind() -> None:
    whole = constants.fixed_array(0x3F80, "bf16", (2, 3))
    assert whole.dtype == np.float32
    assert (whole == 1).all()
    assert constants.fixed_array(0xFFFFFFFF, "i32", (2,)).tolist() == [-1, -1]
    assert constants.fixed_array(1 << 63, "u64", (1,)).tolist() == [1 << 63]


def test_kinds_have_widths_and_bits_are_read_as_unsigned() -> None:
    kinds = ("b32", "bf16", "f64", "i16", "b64")
    assert [constants.width(kind) for kind in kinds] == [32, 16, 64, 16, 64]
    assert [constants.plain(kind) for kind in kinds] == ["u32", "bf16", "f64", "i16", "u64"]


def test_the_high_half_of_an_integer_is_its_own_and_of_a_fraction_zero() -> None:
    found = [constants.high_half(parse_operand(text)) for text in ("0x12345678", "-1", "1.0", "v1")]
    assert found == [0x1234, 0xFFFF, 0, 0]
