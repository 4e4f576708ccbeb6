"""Scalar instructions about the wave itself."""

from __future__ import annotations

import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.dialects.diagnostics import CompilerBug


def scalars(text: str, count: int, chip: str = "gfx942") -> list[int]:
    """Run instructions and give s4 and those behind it, of the first wave."""
    result = Fragment(text, chip).run()
    return [int(result.scalar(4 + i)[0]) for i in range(count)]


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("and", 0b1000), ("or", 0b1110), ("xor", 0b0110), ("nand", ~0b1000), ("nor", ~0b1110),
        ("xnor", ~0b0110), ("andn2", 0b0010), ("orn2", ~0b0100), ("andn1", 0b0100), ("orn1", ~0b0010),
    ],
)  # fmt: skip
def test_exec_is_saved_and_becomes_a_function_of_the_source(name: str, after: int) -> None:
    text = f"""
        s_mov_b64 exec, 12
        s_mov_b64 s[8:9], 10
        s_{name}_saveexec_b64 s[4:5], s[8:9]
        s_mov_b64 s[6:7], exec
        s_cselect_b32 s8, 1, 0
        s_mov_b64 exec, -1
    """
    word = (1 << 32) - 1
    saved, saved_high, low, high, scc = scalars(text, 5)
    assert (saved, saved_high) == (12, 0)
    assert (low, high) == (after & word, after >> 32 & word)
    assert scc == (after != 0)


def test_what_exec_becomes_is_written_instead() -> None:
    text = "s_mov_b64 exec, 12\ns_mov_b64 s[8:9], 10\ns_andn2_wrexec_b64 s[4:5], s[8:9]"
    assert scalars(f"{text}\ns_mov_b64 s[6:7], exec\ns_mov_b64 exec, -1", 3) == [2, 0, 2]


def test_fields_of_mode_are_set_and_read() -> None:
    text = """
        s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 1
        s_getreg_b32 s4, hwreg(HW_REG_MODE, 4, 4)
        s_denorm_mode 15
        s_getreg_b32 s5, hwreg(HW_REG_MODE, 4, 4)
    """
    assert scalars(text, 2, "gfx1100")[1] == 15
    assert scalars(text, 2, "gfx1100")[0] & 3 == 1


@pytest.mark.parametrize(
    "text", ["s_round_mode 1", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 3"]
)
def test_other_roundings_are_refused(text: str) -> None:
    with pytest.raises(CompilerBug, match="rounds to nearest even only"):
        Fragment(text, "gfx1100").run()


def test_other_registers_of_the_hardware_are_refused() -> None:
    with pytest.raises(CompilerBug, match="no hardware register but MODE"):
        Fragment("s_getreg_b32 s4, hwreg(HW_REG_XNACK_MASK)").run()


def test_questions_to_the_driver_are_known_but_not_answered() -> None:
    ask = "s_sendmsg_rtn_b32 s4, sendmsg(MSG_RTN_GET_DOORBELL)"
    Fragment(f"s_branch .Lend\n{ask}\n.Lend:", "gfx1100").run()
    with pytest.raises(CompilerBug, match="no driver that answers: s_sendmsg_rtn_b32"):
        Fragment(ask, "gfx1100").run()


def test_hints_change_nothing() -> None:
    assert scalars("s_mov_b32 s4, 5\ns_nop 7\ns_setprio 3\ns_sleep 1\ns_icache_inv", 1) == [5]
