"""Findings are filed once an instruction, in the order of the program, and tell where."""

from __future__ import annotations

import pytest

from tests.targets.gpu.emulator.worlds import instruction
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.gpu.emulator.findings import Finding, Findings, Kind
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass


def _bare(index: int) -> Instruction:
    return Instruction(index, "bare", InstructionClass.CONTROL)


def _finding(index: int, kind: Kind = Kind.RACE, times: int = 1) -> Finding:
    return Finding(kind, f"fault {index}", instruction(index), (0, 0, 0), 5, times)


def test_the_same_fault_of_one_instruction_is_counted() -> None:
    findings = Findings()
    findings.add(_finding(1, times=2))
    findings.add(_finding(1, times=3))
    findings.add(_finding(1, Kind.UNINITIALIZED))
    assert [(one.kind, one.times) for one in findings.all()] == [
        (Kind.RACE, 5),
        (Kind.UNINITIALIZED, 1),
    ]


def test_they_come_in_the_order_of_the_program() -> None:
    findings = Findings()
    findings.merge([_finding(3), _finding(1)])
    assert [one.instruction.index for one in findings.all()] == [1, 3]
    assert len(findings) == 2


def test_a_finding_reads_as_where_what_and_who() -> None:
    assert str(_finding(2, times=4)) == (
        "kernel.py:1: data race: fault 2 in program (0, 0, 0), thread 5 (4 times); `access`"
    )


def test_they_are_an_error_or_a_warning() -> None:
    findings = Findings()
    findings.raise_or_warn("k", warn=False)
    findings.add(_finding(1))
    with pytest.raises(KernelError, match="kernel `k`: data race"):
        findings.raise_or_warn("k", warn=False)
    with pytest.warns(RuntimeWarning, match="fault 1"):
        findings.raise_or_warn("k", warn=True)


def test_an_error_shows_each_at_its_line() -> None:
    findings = Findings()
    findings.merge([_finding(1), Finding(Kind.DEADLOCK, "stuck", _bare(2)), _finding(3)])
    with pytest.raises(KernelError) as error:
        findings.raise_or_warn("k", warn=False)
    assert str(error.value) == (
        "kernel `k`: data race: fault 1 in program (0, 0, 0), thread 5; `access`\n"
        "  deadlock: stuck; `bare`\n"
        "  --> kernel.py:1:1\n"
        "  data race: fault 3 in program (0, 0, 0), thread 5; `access`\n"
        "  --> kernel.py:1:1"
    )


def test_an_error_does_not_go_on_for_ever() -> None:
    findings = Findings()
    findings.merge([_finding(index) for index in range(20)])
    with pytest.raises(KernelError, match="and 11 more"):
        findings.raise_or_warn("k", warn=False)
