"""Reading AMDGPU assembly: operands, modifiers, sections, descriptors and data."""

from __future__ import annotations

import pytest

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.sections import Label, parse_module
from tiledsl.targets.amdgpu.emulator.text import (
    EXEC,
    M0,
    TTMP,
    VCC,
    Constant,
    Name,
    Operand,
    Parsed,
    Register,
    parse_instruction,
    parse_operand,
    registers_of,
)


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("v3", Register("v", 3)),
        ("v[2:5]", Register("v", 2, 4)),
        ("v[7]", Register("v", 7)),
        ("a[0:15]", Register("v", 256, 16)),
        ("s[8:11]", Register("s", 8, 4)),
        ("ttmp9", Register("s", TTMP + 9)),
        ("vcc", Register("s", VCC, 2)),
        ("vcc_lo", Register("s", VCC)),
        ("exec_hi", Register("s", EXEC + 1)),
        ("m0", Register("s", M0)),
        ("v5.h", Register("v", 5, half=1)),
        ("-v5.l", Register("v", 5, half=0, negated=True)),
        ("-|v1|", Register("v", 1, negated=True, absolute=True)),
        ("|s4|", Register("s", 4, absolute=True)),
        ("neg(v1)", Register("v", 1, negated=True)),
        ("sext(v1)", Register("v", 1, extended=True)),
        ("-16", Constant(integer=-16)),
        ("0x3f800000", Constant(integer=0x3F800000, literal=True)),
        ("-4.0", Constant(real=-4.0)),
        ("0.15915494", Constant(real=0.15915494)),
        ("off", Name("off")),
        ("tiledsl.zeros@rel32@lo+4", Name("tiledsl.zeros@rel32@lo+4")),
    ],
)
def test_operands_read_as_llvm_prints_them(text: str, operand: Operand) -> None:
    assert parse_operand(text) == operand


def test_a_register_that_no_chip_has_is_an_error() -> None:
    with pytest.raises(CompilerBug, match=r"a register that is none: v\[250:260\]"):
        parse_operand("v[250:260]")


def test_operands_stand_between_commas_and_modifiers_between_blanks() -> None:
    parsed = parse_instruction(
        "v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0x3"
    )
    assert (parsed.stem, parsed.encoding) == ("v_mov_b32", "dpp")
    assert parsed.operands == (Register("v", 1), Register("v", 2))
    assert parsed.bits("quad_perm") == (1, 0, 3, 2)
    assert parsed.integer("bank_mask") == 3
    assert parsed.integer("offset", 7) == 7


def test_modifiers_follow_operands_of_any_kind() -> None:
    parsed = parse_instruction("global_load_dwordx4 v[2:5], v0, s[2:3] offset:-16 sc0")
    assert parsed.operands[-1] == Register("s", 2, 2)
    assert parsed.integer("offset") == -16
    assert "sc0" in parsed
    assert "sc1" not in parsed
    swizzle = parse_instruction('ds_swizzle_b32 v1, v2 offset:swizzle(BITMASK_PERM, "01pip")')
    assert swizzle.modifiers["offset"] == 'swizzle(BITMASK_PERM, "01pip")'


@pytest.mark.parametrize(
    ("mnemonic", "stem", "encoding"),
    [
        ("v_add_u32_e32", "v_add_u32", "e32"),
        ("v_add_u32_e64_dpp", "v_add_u32", "e64_dpp"),
        ("v_or_b32_sdwa", "v_or_b32", "sdwa"),
        ("v_mul_lo_u32", "v_mul_lo_u32", ""),
    ],
)
def test_the_encoding_is_off_the_stem(mnemonic: str, stem: str, encoding: str) -> None:
    parsed = parse_instruction(f"{mnemonic} v0, v1, v2")
    assert (parsed.stem, parsed.encoding) == (stem, encoding)


def test_both_halves_of_a_pair_are_read() -> None:
    parsed = parse_instruction("v_dual_mov_b32 v0, 0 :: v_dual_lshlrev_b32 v1, 3, v2")
    assert parsed.dual is not None
    assert parsed.operands == (Register("v", 0), Constant(integer=0))
    assert parsed.dual.operands == (Register("v", 1), Constant(integer=3), Register("v", 2))


_MODULE = """
\t.text
\t.globl\tkernel
kernel:
.Lfunc_begin0:
\t.file\t1 "/home" "a.py"
\t.loc\t1 7 3
\ts_mov_b32 s0, 1 ; a comment
.LBB0_1:
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel kernel
\t\t.amdhsa_group_segment_fixed_size 64
\t.end_amdhsa_kernel
\t.text
\t.set kernel.num_vgpr, 3
\t.fill 256, 4, 3212836864
\t.section\t.rodata.cst16,"aM",@progbits,16
\t.p2align\t4, 0x0
table:
\t.long\t1, 0xffffffff
\t.byte\t-1
\t.zero\t2
\t.asciz\t"a;\\n\\001"
\t.amdgpu_metadata
anything: goes
\t.end_amdgpu_metadata
"""


def test_a_module_is_code_descriptors_and_data() -> None:
    module = parse_module(_MODULE)
    labels = [one.name for one in module.code if isinstance(one, Label)]
    code = [one for one in module.code if isinstance(one, Parsed)]
    assert labels == ["kernel", ".Lfunc_begin0", ".LBB0_1"]
    assert [one.text for one in code] == ["s_mov_b32 s0, 1", "s_endpgm"]
    assert code[0].source is not None
    assert code[0].source.line == 7
    assert module.kernels == {"kernel": {"group_segment_fixed_size": "64"}}
    (table,) = module.data
    content = b"\x01\0\0\0\xff\xff\xff\xff\xff\0\0a;\n\x01\0"
    assert (table.name, bytes(table.content), table.align) == ("table", content, 16)


def test_data_that_refers_to_symbols_is_an_error() -> None:
    with pytest.raises(CompilerBug, match="refers to 'kernel', not a number"):
        parse_module("\t.section .rodata\nx:\n\t.quad kernel\n")


def test_registers_are_bits() -> None:
    operands = parse_instruction("global_load_dwordx2 v[2:3], v0, s[0:1]").operands
    assert registers_of(operands) == 0b1101 | 0b11 << 512
