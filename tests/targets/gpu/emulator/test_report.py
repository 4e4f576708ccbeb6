"""A report adds its counters up by line, ranks them, and reads well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.targets.gpu.emulator.worlds import instruction
from tiledsl.targets.gpu.emulator.counters import Counters, Rules
from tiledsl.targets.gpu.emulator.findings import Finding, Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction, InstructionClass
from tiledsl.targets.gpu.emulator.report import Report, make_report
from tiledsl.targets.gpu.source_lines import Source

_WARP = np.arange(32)


def _report(source: str) -> Report:
    def one(index: int, kind: InstructionClass, line: int) -> Instruction:
        return Instruction(index, f"op{index}", kind, Source(source, line, 1))

    instructions = [
        one(0, InstructionClass.GLOBAL, 1),
        one(1, InstructionClass.GLOBAL, 1),
        one(2, InstructionClass.SHARED, 2),
        one(3, InstructionClass.SHARED, 3),
        one(4, InstructionClass.MATRIX, 3),
        Instruction(5, "exit", InstructionClass.CONTROL),
    ]
    blocks = [
        BasicBlock([], lambda _: 1, instructions[:2]),
        BasicBlock([], lambda _: None, instructions[2:]),
    ]
    counters = Counters(6, Rules(), np.zeros(32, np.intp))
    counters.executed(0, 4)
    counters.executed(1, 8)
    counters.global_access(0, (_WARP * 4).astype(np.uint64), 4, _WARP)
    counters.global_access(1, (_WARP * 64).astype(np.uint64), 4, _WARP)
    counters.shared_access(2, _WARP * 4, 4, _WARP)
    counters.shared_access(3, _WARP * 8, 4, _WARP)
    counters.matrix(4, 8, 4096)
    finding = Finding(Kind.RACE, "read too soon", instruction(3), (1, 0, 0), 5)
    return make_report(
        "k", "sm_80", "lazy", ((4, 1, 1), 128, 512), (blocks, instructions), counters, [finding]
    )


def test_counters_are_summed_by_line_and_ranked() -> None:
    report = _report("none.py")
    assert report.executed == {
        "shared memory": 16,
        "global memory": 8,
        "matrix": 8,
        "control flow": 8,
    }
    (line,) = report.global_lines
    assert (line.instructions, line.transactions, line.bytes_moved) == (2, 36, 1152)
    assert line.share_used == 256 / 1152
    assert [(one.where, one.degree) for one in report.shared_lines] == [
        ("none.py:3", 2.0),
        ("none.py:2", 1.0),
    ]
    assert (report.matrix_instructions, report.flops) == (8, 8 * 4096)


def test_it_prints_as_tables_with_the_source(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("x = load(p)\ns = a\n" + "y = " + "very_" * 30 + "long\n")
    text = str(_report(str(source)))
    assert all(len(line) <= 100 for line in text.splitlines() if "data race" not in line)
    assert "kernel.py:1  x = load(p)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["kernel.py:1", "x", "=", "load(p)", "2", "36", "1,152", "22%"] in rows
    assert "8 matrix instructions, 32,768 FLOPs" in text
    assert "data race: read too soon in program (1, 0, 0), thread 5" in text
    assert "--> kernel.py:1:1" in text


def test_it_is_plain_data_for_json() -> None:
    plain = _report("none.py").to_dict()
    again = json.loads(json.dumps(plain))
    assert again == plain
    assert again["findings"][0]["kind"] == "data race"
    assert again["grid"] == [4, 1, 1]
