"""PTX text taken apart: operands, scopes, variables, what is no code."""

from __future__ import annotations

import pytest

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.nvptx.emulator.parse import parse
from tiledsl.targets.nvptx.emulator.text import (
    Address,
    Function,
    Guard,
    Immediate,
    Label,
    Negated,
    Pair,
    Parsed,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_HEAD = """
.version 8.0
.target sm_80
.address_size 64
"""


def kernel(body: str, declarations: str = "", parameters: str = "") -> Function:
    text = f"{_HEAD}{declarations}\n.visible .entry k({parameters})\n.reqntid 128\n{{\n{body}\n}}\n"
    return parse(text).kernels["k"]


def one(line: str) -> Parsed:
    registers = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;"
    (statement,) = kernel(registers + line).body
    assert isinstance(statement, Parsed)
    return statement


def test_an_instruction_has_an_opcode_and_operands() -> None:
    found = one("add.s32 \t%r1,  %r2, -7;")
    assert found.opcode == "add.s32"
    assert found.stem == "add"
    assert found.modifiers == ["s32"]
    assert found.operands == (Register("%r1", "b32"), Register("%r2", "b32"), Immediate(-7))
    assert found.text == "add.s32 %r1, %r2, -7"


@pytest.mark.parametrize(
    ("spelled", "operand"),
    [
        ("12", Immediate(12)),
        ("-1", Immediate(-1)),
        ("0x1F", Immediate(31)),
        ("0f3F800000", Immediate(0x3F800000, "f32")),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
        ("%tid.x", Special("%tid.x")),
        ("_", Sink()),
        ("name", Symbol("name")),
        ("{%r1, _}", Vector((Register("%r1", "b32"), Sink()))),
        ("%p1|%p2", Pair(Register("%p1", "pred"), Register("%p2", "pred"))),
        ("!%p3", Negated(Register("%p3", "pred"))),
        ("[%rd1]", Address(Register("%rd1", "b64"))),
        ("[%rd1+16]", Address(Register("%rd1", "b64"), 16)),
        ("[%rd1+-8]", Address(Register("%rd1", "b64"), -8)),
        ("[%rd1-8]", Address(Register("%rd1", "b64"), -8)),
        ("[name+4]", Address(Symbol("name"), 4)),
        (
            "[%rd1, {%r1, %r2}]",
            Address(
                Register("%rd1", "b64"),
                0,
                Vector((Register("%r1", "b32"), Register("%r2", "b32"))),
            ),
        ),
    ],
)
def test_operands(spelled: str, operand: object) -> None:
    assert one(f"op.b32 {spelled};").operands == (operand,)


def test_a_guard_may_be_negated() -> None:
    assert one("@%p1 bra target;").guard == Guard(Register("%p1", "pred"), False)
    assert one("@!%p1 bra target;").guard == Guard(Register("%p1", "pred"), True)


def test_an_instruction_may_take_several_lines_and_knows_its_first() -> None:
    found = kernel(".reg .b32 %r<9>;\n// a comment\nmma.sync\n  {%r1},\n  {%r2};").body[0]
    assert isinstance(found, Parsed)
    assert found.text == "mma.sync {%r1}, {%r2}"
    assert found.line == 10


def test_scopes_keep_their_registers_and_labels_apart() -> None:
    body = kernel(
        """
        .reg .b32 %r<3>;
        { .reg .pred p; again: setp.ne.b32 p, %r1, 0; @p bra again; }
        // begin inline asm
        { .reg .pred p; again: setp.ne.b32 p, %r2, 0; @p bra again; }
        // end inline asm
        """
    ).body
    labels = [one.name for one in body if isinstance(one, Label)]
    assert len(set(labels)) == 2
    guards = [one.guard.register.name for one in body if isinstance(one, Parsed) and one.guard]
    assert len(set(guards)) == 2
    targets = [one.operands[0] for one in body if isinstance(one, Parsed) and one.stem == "bra"]
    assert targets == [Symbol(name) for name in labels]


def test_tables_of_branches() -> None:
    found = kernel(
        """
        .reg .b32 %r<3>;
        $L_brx_0: .branchtargets $L1,
            $L2;
        brx.idx %r1, $L_brx_0;
        $L1: ret;
        $L2: ret;
        """
    )
    assert found.tables == {"$L_brx_0": ("$L1", "$L2")}
    assert [one.name for one in found.body if isinstance(one, Label)] == ["$L1", "$L2"]


def test_variables_and_parameters() -> None:
    module = parse(
        _HEAD
        + """
        .extern .shared .align 128 .b8 dynamic[];
        .shared .align 4 .b8 fixed[96];
        .global .align 1 .b8 text[3] = {72, 105};
        .visible .const .align 8 .b64 table[2] = {text, generic(text)+2};
        .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .visible .entry k(
            .param .u64 .ptr .global .align 16 k_param_0,
            .param .align 64 .b8 k_param_1[128],
            .param .u32 k_param_2
        ) { .local .align 8 .b8 __local_depot0[24]; ret; }
        """
    )
    by_name = {one.name: one for one in module.variables}
    assert (by_name["dynamic"].space, by_name["dynamic"].size) == ("shared", 0)
    assert by_name["fixed"].size == 96
    assert by_name["text"].initial == (72, 105)
    assert by_name["table"].initial == (("text", 0), ("text", 2))
    first, second, third = module.kernels["k"].parameters
    assert (first.size, first.alignment) == (8, 8)
    assert (second.size, second.alignment) == (128, 64)
    assert third.size == 4
    (local,) = module.kernels["k"].variables
    assert (local.space, local.size) == ("local", 24)


def test_directives_and_debug_information_are_no_code() -> None:
    text = (
        f"{_HEAD}.visible .entry k()\n.reqntid 64, 1, 1\n.minnctapersm 2\n{{\n"
        '.pragma "nounroll";\n.loc 1 2 3, function_name $L_info, inlined_at 1 2 3\nret;\n}\n'
        '.file 1 "a.py"\n.section .debug_abbrev { .b8 1 }\n'
    )
    found = parse(text).kernels["k"]
    assert found.directives == {"reqntid": (64, 1, 1), "minnctapersm": (2,)}
    assert len(found.body) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ADD %r1;", "does not know: `ADD %r1`"),
        ("add.s32 [;", "expected an operand"),
        ("add.s32 1.5;", "operands that the emulator does not know"),
        (".tex .u32 t;", "does not know: `.tex .u32 t`"),
        ("@1 bra a;", "expected a predicate"),
    ],
)
def test_what_is_no_ptx_is_an_error(body: str, message: str) -> None:
    with pytest.raises(CompilerBug, match=message.replace("[", r"\[")):
        kernel(".reg .b32 %r<3>;" + body)
