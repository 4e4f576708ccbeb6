"""What one emulated launch cost and did wrong, by line of the author's source.

    print(report)         a page of tables, at most 100 columns
    report.to_dict()      the same as plain data, for JSON

Instructions are counted by warps (waves): one that a warp executes counts once. Of global memory it
says how many transactions a line's accesses take and how much of what those move somebody asked
for; of shared memory, how many times as long it takes as it would without bank conflicts (the
*degree*). What a cache would save is not modelled, and no time is: see docs/emulators.md.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.findings import Finding
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction, InstructionClass
from tiledsl.targets.gpu.source_lines import Source

_WIDTH = 100


@dataclass(frozen=True)
class GlobalLine:
    """The accesses to global memory of one source line.

    Attributes:
        where: File and line; "" where the text does not say.
        instructions: Executed, by warps.
        transactions: Sectors touched.
        bytes_moved: Bytes of those sectors.
        share_used: Part of the bytes moved that lanes asked for, 0 to 1.
    """

    where: str
    instructions: int
    transactions: int
    bytes_moved: int
    share_used: float


@dataclass(frozen=True)
class SharedLine:
    """The accesses to shared memory of one source line.

    Attributes:
        where: File and line; "" where the text does not say.
        instructions: Executed, by warps.
        wavefronts: What they take, in turns of all banks.
        degree: Wavefronts for each one that would do without bank conflicts; 1 is best.
        worst: The degree of the worst access.
    """

    where: str
    instructions: int
    wavefronts: int
    degree: float
    worst: float


@dataclass(frozen=True)
class Report:
    """See the module's docstring.

    Attributes:
        kernel: The kernel's name.
        chip: What it was compiled for.
        mode: "eager" or "lazy".
        grid: Programs along x, y and z.
        threads: Threads a program.
        shared_bytes: Shared memory a program.
        executed: Instructions executed by all warps, by class, the most first.
        global_lines: Global memory, the most bytes moved first.
        shared_lines: Shared memory, the worst degree first.
        matrix_instructions: Executed, by warps.
        flops: What those computed: a multiplication and an addition are two.
        findings: What is wrong with the kernel, in the order of the program.
    """

    kernel: str
    chip: str
    mode: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    executed: dict[str, int]
    global_lines: Sequence[GlobalLine]
    shared_lines: Sequence[SharedLine]
    matrix_instructions: int
    flops: int
    findings: Sequence[Finding]

    def to_dict(self) -> dict[str, Any]:
        """Return it as dictionaries, lists, numbers and text only."""
        plain = {
            name: getattr(self, name)
            for name in ("kernel", "chip", "mode", "threads", "shared_bytes", "executed")
        }
        return {
            **plain,
            "grid": list(self.grid),
            "global_lines": [asdict(line) for line in self.global_lines],
            "shared_lines": [asdict(line) for line in self.shared_lines],
            "matrix_instructions": self.matrix_instructions,
            "flops": self.flops,
            "findings": [_finding_dict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        programs = " x ".join(str(size) for size in self.grid)
        parts = [
            f"{self.kernel} on {self.chip} ({self.mode}): {programs} programs of {self.threads} "
            f"threads, {self.shared_bytes} bytes of shared memory",
            _table(
                ("instructions", "by warps"),
                [(name, f"{count:,}") for name, count in self.executed.items()],
            ),
        ]
        if self.matrix_instructions:
            parts.append(f"{self.matrix_instructions:,} matrix instructions, {self.flops:,} FLOPs")
        if self.global_lines:
            rows = [
                (
                    _named(line.where),
                    f"{line.instructions:,}",
                    f"{line.transactions:,}",
                    f"{line.bytes_moved:,}",
                    f"{line.share_used:.0%}",
                )
                for line in self.global_lines
            ]
            heads = ("global memory", "accesses", "transactions", "bytes moved", "used")
            parts.append(_table(heads, rows))
        if self.shared_lines:
            rows = [
                (
                    _named(line.where),
                    f"{line.instructions:,}",
                    f"{line.wavefronts:,}",
                    f"{line.degree:.2f}",
                    f"{line.worst:.0f}",
                )
                for line in self.shared_lines
            ]
            heads = ("shared memory", "accesses", "wavefronts", "conflict degree", "worst")
            parts.append(_table(heads, rows))
        parts += [_shown(finding) for finding in self.findings] or ["no findings"]
        return "\n\n".join(parts)


def make_report(
    kernel: str,
    chip: str,
    mode: str,
    shape: tuple[tuple[int, int, int], int, int],
    program: tuple[Sequence[BasicBlock], Sequence[Instruction]],
    counters: Counters,
    findings: Sequence[Finding],
) -> Report:
    """Sum counters up by line.

    Args:
        kernel: The kernel's name.
        chip: What it was compiled for.
        mode: "eager" or "lazy".
        shape: The grid, threads a program and shared bytes a program.
        program: The decoded blocks and instructions that `counters` are of.
        counters: Of the whole launch.
        findings: Of the whole launch.
    """
    blocks, instructions = program
    executed = _executions(blocks, counters)
    by_class: dict[InstructionClass, int] = defaultdict(int)
    for instruction in instructions:
        by_class[instruction.kind] += executed.get(instruction.index, 0)
    ranked = sorted(by_class.items(), key=lambda item: -item[1])
    grid, threads, shared_bytes = shape
    return Report(
        kernel,
        chip,
        mode,
        grid,
        threads,
        shared_bytes,
        {kind.value: count for kind, count in ranked if count},
        _global_lines(instructions, counters),
        _shared_lines(instructions, counters),
        by_class[InstructionClass.MATRIX],
        int(counters.flops.sum()),
        findings,
    )


def _executions(blocks: Sequence[BasicBlock], counters: Counters) -> dict[int, int]:
    """Return how often each instruction was executed, by warps."""
    executed: dict[int, int] = defaultdict(int)
    for number, times in counters.blocks.items():
        for instruction in blocks[number].instructions:
            executed[instruction.index] += times
    return executed


def _by_line(instructions: Iterable[Instruction]) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = defaultdict(list)
    for instruction in instructions:
        lines[_where(instruction.source)].append(instruction.index)
    return lines


def _global_lines(instructions: Sequence[Instruction], counters: Counters) -> list[GlobalLine]:
    found: list[GlobalLine] = []
    for where, indexes in _by_line(instructions).items():
        transactions = int(counters.transactions[indexes].sum())
        if not transactions:
            continue
        moved = transactions * counters.rules.sector_bytes
        used = int(counters.used[indexes].sum()) / moved
        accesses = int(counters.accesses[indexes].sum())
        found.append(GlobalLine(where, accesses, transactions, moved, used))
    return sorted(found, key=lambda line: (-line.bytes_moved, line.where))


def _shared_lines(instructions: Sequence[Instruction], counters: Counters) -> list[SharedLine]:
    found: list[SharedLine] = []
    for where, indexes in _by_line(instructions).items():
        phases = int(counters.phases[indexes].sum())
        if not phases:
            continue
        wavefronts = int(counters.wavefronts[indexes].sum())
        accesses = int(counters.shared_accesses[indexes].sum())
        worst = float(counters.worst[indexes].max())
        found.append(SharedLine(where, accesses, wavefronts, wavefronts / phases, worst))
    return sorted(found, key=lambda line: (-line.degree, -line.wavefronts, line.where))


def _where(source: Source | None) -> str:
    return "" if source is None else f"{source.file}:{source.line}"


def _named(where: str) -> str:
    """Return a line's short name and its text, as far as they fit."""
    if not where:
        return "(no line)"
    file, _, line = where.rpartition(":")
    text = linecache.getline(file, int(line)).strip()
    return f"{file.rpartition('/')[2]}:{line}  {text}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows: the first column left and cut to fit, the others right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widths[0] = min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    lines: list[str] = []
    for row in (heads, *rows):
        first = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 3] + "..."
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *rest]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _shown(finding: Finding) -> str:
    """Return a finding with the author's line and carets under the expression."""
    span, other = finding.span(), finding.other_span()
    shown = [] if span is None else ["  " + line for line in span.excerpt()]
    if other is not None:
        shown += ["  the other access:", *("  " + line for line in other.excerpt())]
    return "\n".join([finding.summary(), *shown])


def _finding_dict(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "message": finding.message,
        "where": _where(finding.instruction.source),
        "instruction": finding.instruction.text,
        "block": None if finding.block is None else list(finding.block),
        "thread": finding.thread,
        "times": finding.times,
    }
