"""Find the main loop in AMD's assembly text, of any compiler, and count what one trip executes.

A main loop is the innermost one with the most matrix instructions, or, where there are none, with
the most loads. What one trip executes is counted in the text between the loop's label and its
branch back, plus the blocks elsewhere that it branches to and that come back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_KINDS = (
    ("matrix", r"v_s?w?mfmac?_|v_mfma_|v_wmma_|v_swmmac_"),
    ("lds read 128", r"ds_(read|load)_(b128|tr\w*_b128|b96_tr)"),
    ("lds read", r"ds_(read|load)"),
    ("lds write 128", r"ds_(write|store)_b128"),
    ("lds write", r"ds_(write|store)"),
    ("load 128", r"(global|buffer|flat)_load_(dwordx4|b128|lds_dwordx4)|buffer_load_dwordx4"),
    ("load", r"(global|buffer|flat)_load"),
    ("spill", r"scratch_|v_accvgpr"),
    ("wait", r"s_wait|s_nop|s_delay"),
    ("barrier", r"s_barrier"),
    ("scalar", r"s_"),
    ("vector", r"v_"),
)


def kind_of(instruction: str) -> str:
    """Give the class of an instruction that the table counts it in."""
    name = instruction.split()[0]
    return next((kind for kind, pattern in _KINDS if re.match(pattern, name)), "other")


@dataclass(frozen=True)
class Loop:
    """What one trip of a kernel's main loop executes, and what the kernel takes."""

    counts: Mapping[str, int]
    vgprs: int
    spilled: int

    @property
    def instructions(self) -> int:
        """Give all of a trip's instructions, waits left out."""
        return sum(self.counts.values()) - self.counts.get("wait", 0)

    @property
    def share(self) -> float:
        """Give the matrix instructions among them."""
        return self.counts.get("matrix", 0) / self.instructions


def main_loop(text: str) -> Loop:
    """Find and count the main loop of an assembly text."""
    lines = [line.split(";")[0].split("//")[0].strip() for line in text.splitlines()]
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\.?\w+):", line))}
    bodies = [_executed(lines, labels, start, end) for start, end in _back_edges(lines, labels)]
    counted = [Counter(map(kind_of, body)) for body in bodies]
    best = max(counted, key=lambda c: (c["matrix"], c["load"] + c["load 128"], -c.total()))
    told = {name: int(value) for name, value in re.findall(r"\.(vgpr\w*count):\s+(\d+)", text)}
    return Loop(best, told["vgpr_count"], told["vgpr_spill_count"])


def _back_edges(lines: Sequence[str], labels: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    for i, line in enumerate(lines):
        branch = re.match(r"s_c?branch\w*\s+(\S+)", line)
        if branch and labels.get(branch[1], i) < i:
            yield labels[branch[1]], i


def _executed(lines: Sequence[str], labels: Mapping[str, int], start: int, end: int) -> list[str]:
    """Give the loop's instructions, with those of blocks elsewhere that come back into it."""
    found = [line for line in lines[start : end + 1] if _is_instruction(line)]
    for line in list(found):
        branch = re.match(r"s_c?branch\w*\s+(\S+)", line)
        if not branch or branch[1] not in labels or start <= labels[branch[1]] <= end:
            continue
        away: list[str] = []
        for there in lines[labels[branch[1]] :]:
            if not _is_instruction(there):
                continue
            away.append(there)
            leaves = re.match(r"s_branch\s+(\S+)", there)
            if leaves:
                if start <= labels.get(leaves[1], -1) <= end:
                    found += away
                break
            if there.startswith("s_endpgm"):
                break
    return found


def _is_instruction(line: str) -> bool:
    return bool(re.match(r"[a-z]\w+(\s|$)", line)) and not line.endswith(":")
