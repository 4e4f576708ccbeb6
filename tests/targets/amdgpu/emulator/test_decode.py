"""From text to basic blocks: entries by stem, blocks at labels and branches, registers named."""

from __future__ import annotations

import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.emulator.decode import (
    CODE_ADDRESS,
    Code,
    Context,
    Ending,
    Entry,
    Launch,
    decode_blocks,
    entry_of,
)
from tiledsl.targets.amdgpu.emulator.sections import parse_module
from tiledsl.targets.amdgpu.emulator.text import VCC, parse_instruction
from tiledsl.targets.gpu.emulator.program import InstructionClass


def decoded(*lines: str, chip: str = "gfx942") -> tuple[Context, Code]:
    """Decode the code of a kernel that begins at the label `kernel`."""
    text = "\t.text\n" + "\n".join(one if ":" in one else f"\t{one}" for one in lines) + "\n"
    context = Context(CHIPS[chip], CHIPS[chip].wave_size, 0, False, {})
    blocks, instructions, parsed = decode_blocks(parse_module(text), "kernel", context)
    launch = Launch(None, None, (), False, None, None)
    code = Code(CHIPS[chip], 64, 0, 0, 1, 0, launch, blocks, instructions, parsed)
    return context, code


_LOOP = (
    "kernel:",
    "s_mov_b32 s0, 4",
    ".LBB0_1:",
    "s_sub_u32 s0, s0, 1",
    "s_cmp_lg_u32 s0, 0",
    "s_cbranch_scc1 .LBB0_1",
    "v_mov_b32_e32 v70, s0",
    "s_endpgm",
)


def test_blocks_begin_at_labels_and_behind_branches() -> None:
    context, code = decoded(*_LOOP)
    assert [[one.text for one in block.instructions] for block in code.blocks] == [
        ["s_mov_b32 s0, 4"],
        ["s_sub_u32 s0, s0, 1", "s_cmp_lg_u32 s0, 0", "s_cbranch_scc1 .LBB0_1"],
        ["v_mov_b32_e32 v70, s0", "s_endpgm"],
        [],
    ]
    assert context.labels == {"kernel": 0, ".LBB0_1": 1}
    assert context.symbols[".LBB0_1"] == CODE_ADDRESS + 8
    assert [one.index for one in code.instructions] == list(range(6))
    assert code.vectors == 71
    assert [code.block_at(index) for index in (0, 1, 2, 4)] == [0, 1, None, 2]


def test_the_kernel_comes_first_and_what_is_above_it_last() -> None:
    _, code = decoded("helper:", "s_nop 0", "s_setpc_b64 s[30:31]", "kernel:", "s_endpgm")
    assert [block.label for block in code.blocks if block.instructions] == ["kernel", "helper"]
    with pytest.raises(CompilerBug, match="no kernel 'kernel'"):
        decoded("other:", "s_endpgm")


def test_an_unknown_mnemonic_is_an_error_that_names_it() -> None:
    with pytest.raises(CompilerBug, match="does not know `v_frobnicate_b32_e32`"):
        Fragment("v_frobnicate_b32_e32 v1, v2")


def test_a_branch_to_nowhere_is_an_error_that_names_it() -> None:
    with pytest.raises(CompilerBug, match=r"s_branch \.LBB9_9: there is no label \.LBB9_9"):
        decoded("kernel:", "s_branch .LBB9_9")


def test_stems_find_their_entry_in_every_encoding_and_beginnings_the_longest() -> None:
    whole = entry_of(parse_instruction("v_add_f32_e32 v1, v2, v3"))
    for text in ("v_add_f32_e64 v1, v2, v3 clamp", "v_add_f32_dpp v1, v2, v3 row_shr:1"):
        assert entry_of(parse_instruction(text)) is whole
    assert isinstance(whole, Entry)
    assert whole.kind == InstructionClass.FLOAT
    assert isinstance(entry_of(parse_instruction("s_endpgm")), Ending)
    pair = "v_dual_mov_b32 v0, 0 :: v_dual_mov_b32 v1, 1"
    single = "v_mov_b32_e32 v0, 0"
    assert entry_of(parse_instruction(pair)) is not entry_of(parse_instruction(single))


@pytest.mark.parametrize(
    ("chip", "generation"), [("gfx90a", 9), ("gfx950", 9), ("gfx1151", 11), ("gfx1200", 12)]
)
def test_the_generation_is_the_major_number(chip: str, generation: int) -> None:
    assert Context(CHIPS[chip], 32, 0, False, {}).generation == generation


def test_registers_of_an_instruction_include_those_it_does_not_name() -> None:
    _, code = decoded("kernel:", "v_div_fmas_f32 v1, v2, v3, v4", "s_cbranch_vccz kernel")
    ((_, registers, _),) = code.blocks[0].guarded
    scalars = {bit for bit in range(512, 700) if registers >> bit & 1}
    assert {bit for bit in range(512) if registers >> bit & 1} == {1, 2, 3, 4}
    assert scalars == {bit for bit in range(512, 700) if code.blocks[0].end_registers >> bit & 1}
    assert len(scalars) == 2
    assert min(scalars) % 128 == VCC % 128


def test_the_program_counter_is_where_the_next_instruction_would_be() -> None:
    context, _ = decoded("kernel:", "s_nop 0", "s_getpc_b64 s[0:1]", "s_nop 0", "s_endpgm")
    assert context.anchor == CODE_ADDRESS + 16
