"""Take something away from a kernel's text and see whether the emulator notices.

`record` runs a kernel that is right and hands over each of its launches, with the memory before and
after it. `Recorded.judge` runs another text over the same memory and says what gives it away: a
finding, a wrong result, or nothing. `mutants` makes the texts.

Sizes are ragged, what lies between the rows of arrays was never written (`good_kernels.padded`),
and arrays end in bytes that are nobody's, so that a lane that a mask should keep out shows.

A mutant that nothing gives away does not matter where a rule says so; `Recorded.verdict` tries them
in turn and tells which it was. None asks the emulator's own checks. In this launch

- the instruction is not executed;
- the guard is true wherever it is evaluated, which a trap under the opposite shows (PTX), or the
  instruction leaves exec or its register as it was (AMD);
- *any predicate*: every store and atomic is to the same bytes all the same, nothing is read that
  was not read before, and (as always) the results are the same. So a mask is nested in another,
  lanes are replicas that do one thing several times, or the branch leads around nothing;
- *a wait of AMD's*: nothing that it waits for is under way, because an earlier wait covers it; or a
  later one covers it in time, for taking both away is noticed; or no instruction that is executed
  later uses what it loads; or what it waits for are stores, to global memory of which no other warp
  touches a byte, or to LDS before a barrier without which nothing conflicts;
- *a barrier*: no two instructions by which two warps touch one byte, one of them writing, are
  between two barriers now that were not before (those that were, mbarriers order);
- *a fence of global memory*: no warp touches a byte of it that another warp writes, but by atomics;
- *an invalidation of AMD's caches*: another one comes before any load, whatever branches are taken;
- *a fence for NVIDIA's asynchronous proxy*: without a branch, no plain write to shared memory comes
  between the one before and it, or nothing that the proxy does between it and the next one;
- *a wait for an mbarrier*: whatever it is before, up to the next label, is off in this launch (a trap
  under its guard shows that): the next copy into a slot, say, where there is none;
- *a fence for mbarriers or wgmma*: another one covers it in time, for taking both away is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from tests.kernels.good_kernels import PADDING
from tests.kernels.mutants import (
    Mutant,
    barrier_below,
    instruction_lines,
    is_ptx,
    mutants,
    replaced,
)
from tests.kernels.traces import Trace
from tests.kernels.watches import Watch
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator import grid as grids
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel, EmulatorDriver
from tiledsl.targets.gpu.emulator.findings import Finding, Findings
from tiledsl.targets.gpu.emulator.launch import Launch, Program
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.nvptx import ptxas

# --- fences that order nothing -------------------------------------------------------------------

_ORDERS_GLOBAL = re.compile(
    r"(@!?%p\d+\s+)?(atom|red)\.|membar|fence\.(acq_rel|sc|acquire|release)|buffer_(wbl2|inv|gl)|global_(wb|inv)"
)
_INVALIDATES = re.compile(r"buffer_(inv|gl\d_inv|wbinvl1)|global_inv")
_PROXY = "fence.proxy.async"


def _orders_nothing(text: str, fence: int) -> bool:
    """Say whether a fence for the asynchronous proxy has nothing to order, as far as it shows."""
    lines = [line.strip() for line in text.splitlines()]
    return not (
        _comes(reversed(lines[:fence]), r"st\.shared|stmatrix")
        and _comes(iter(lines[fence + 1 :]), r"wgmma\.mma_async|cp\.async\.bulk|cp\.reduce")
    )


def _comes(lines: Iterator[str], form: str) -> bool:
    """Say whether such an instruction, or a branch or label, comes before a fence of that kind."""
    for line in lines:
        if line.startswith((_PROXY, "ret;")):
            return False
        if re.match(rf"{form}|\$L__BB\w+:|(@!?%p\d+\s+)?bra\b", line):
            return True
    return False


def _precedes_another(text: str, fence: int) -> bool:
    """Say whether AMD's caches are invalidated once more before anything is loaded through them."""
    lines = [line.strip() for line in text.splitlines()]
    for another in range(fence + 1, len(lines)):
        if re.match(r"(global|flat|buffer)_load|s_endpgm", lines[another]):
            return False
        between = lines[fence + 1 : another]
        leaving = (re.match(r"s_c?branch\w* (\S+)", line) for line in between)
        if lines[another] == lines[fence] and all(
            f"{one[1]}:" in between for one in leaving if one is not None
        ):
            return True
    return False


# --- launches ------------------------------------------------------------------------------------

CAUGHT, SURVIVED, NO_EFFECT, NOT_EXECUTED = "caught", "survived", "no effect", "not executed"


@dataclass(frozen=True)
class Verdict:
    """What a launch makes of a mutant: one of the four outcomes above, and why."""

    outcome: str
    why: str = ""


@dataclass(frozen=True)
class Effects:
    """What the instructions of a text do in one launch, by line.

    Attributes:
        executed: Lines that are executed.
        idle: Lines of AMD's waits, choices and writes to exec that never change anything.
        stores: Lines of AMD's waits that complete nothing but stores to global memory.
        unused: Lines of AMD's waits for loads of what no instruction below names that is executed.
        lds_stores: Lines of AMD's waits that complete stores to LDS and no loads.
        turns: Basic blocks that a warp executes, on the average.
    """

    executed: set[int]
    idle: set[int] = field(default_factory=set[int])
    stores: set[int] = field(default_factory=set[int])
    unused: set[int] = field(default_factory=set[int])
    lds_stores: set[int] = field(default_factory=set[int])
    turns: int = 0


@dataclass(eq=False)
class Recorded:
    """A launch of a kernel that is right; it can be used only while `record` calls back.

    Attributes:
        driver: The emulator.
        entry: The kernel's name.
        text: Its text.
        launch: How it is launched.
        arrays: Its arrays as they were before.
        after: What they hold after it.
        programs: Texts that were decoded, for this launch or others.
        step_limit: Basic blocks that a warp may execute (a mutant may have lost the end of a loop).
    """

    driver: EmulatorDriver
    entry: str
    text: str
    launch: Launch
    arrays: Sequence[Contents]
    after: Sequence[NDArray[np.uint8]]
    programs: dict[str, Program]
    step_limit: int = 100_000
    _judged: dict[str, str] = field(default_factory=dict[str, str])

    def judge(self, text: str) -> str:
        """Run another text over the memory as it was; returns what gives it away, "" if nothing."""
        findings = Findings()
        try:
            self._run(self._load(text), findings)
        except (KernelError, CompilerBug) as error:
            return error.message
        if findings:
            return "\n".join(one.summary() for one in findings.all())
        found = [self.driver.memory.bytes_at(one.low, one.size) for one in self.arrays]
        same = all(map(np.array_equal, found, self.after))
        return "" if same else "wrong result"

    def judge_and_trace(self, text: str) -> tuple[str, Trace]:
        """Judge another text, and return all its accesses to memory."""
        with pytest.MonkeyPatch.context() as patch:
            trace = Trace(patch, [(one.low, one.low + one.size) for one in self.arrays])
            return self.judge(text), trace

    def findings(self, text: str) -> Sequence[Finding]:
        """Run another text over the memory as it was; returns what it does wrong."""
        findings = Findings()
        self._run(self._load(text), findings)
        return findings.all()

    def effects(self) -> Effects:
        """Run the kernel as it is and look at its instructions."""
        program = self.driver.load(self.text.encode(), self.entry, self.launch.shared_bytes).program
        lines = instruction_lines(self.text)
        assert len(lines) == len(program.instructions), "a line was not understood"
        watch = Watch(program)
        counters = self._run(program, Findings())
        assert counters is not None
        executed = {
            instruction.index
            for block in counters.blocks
            for instruction in program.blocks[block].instructions
        }
        unused = set[int]() if is_ptx(self.text) else watch.unused(executed)
        found = (executed, watch.idle, watch.stores, unused, watch.lds_stores())
        by_line = ({lines[index] for index in indices} for indices in found)
        warps = int(np.prod(self.launch.grid)) * -(-self.launch.threads // program.warp_size)
        return Effects(*by_line, turns=-(-sum(counters.blocks.values()) // warps))

    def verdict(self, mutant: Mutant, effects: Effects) -> Verdict:
        """Say what this launch makes of a mutant."""
        if effects.turns:
            self.step_limit = _LONGER * effects.turns + 1000
        if mutant.line not in effects.executed:
            return Verdict(NOT_EXECUTED)
        if mutant.kind == "wait" and mutant.line in effects.idle:
            return Verdict(NO_EFFECT, "changes nothing")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grids, "Findings", _FirstFinding)
            told, trace = self.judge_and_trace(mutant.text)
        if told:
            return Verdict(CAUGHT, told)
        why = self._harmless(mutant, effects, trace)
        return Verdict(NO_EFFECT, why) if why else Verdict(SURVIVED)

    def _harmless(self, mutant: Mutant, effects: Effects, trace: Trace) -> str:
        """Say by which rule a mutant that was not noticed does not matter; "" by none."""
        if mutant.line in effects.idle:
            return "changes nothing"
        if mutant.probe is not None and not self.judge(mutant.probe):
            return "guard always true"
        if mutant.kind == "predicate":
            mine = trace.written == self.original.written
            return "same accesses" if mine and trace.reads_no_more_than(self.original) else ""
        if mutant.kind == "barrier":
            return "no conflict more" if trace.conflicts <= self.original.conflicts else ""
        if mutant.was.startswith(_PROXY):
            return "orders nothing" if _orders_nothing(self.text, mutant.line) else ""
        if mutant.was.endswith("again;") and self._is_before_nothing(mutant.line):
            return "before a copy that is not made"
        if _INVALIDATES.match(mutant.was) and _precedes_another(self.text, mutant.line):
            return "once more before a load"
        if mutant.line in effects.unused and not self.original.passes():
            return "not used"
        if mutant.line in effects.lds_stores and not self._needs_barrier_below(mutant.line):
            return "before a barrier that nothing needs"
        if _ORDERS_GLOBAL.match(mutant.was) or mutant.line in effects.stores:
            return "" if self.original.passes() else "nothing passes between warps"
        return ""

    def _is_before_nothing(self, line: int) -> bool:
        """Say whether all that touches memory from a line to the next label is off in this launch."""
        lines = self.text.splitlines()
        traps: dict[int, str] = {}
        for number in range(line + 1, len(lines)):
            if lines[number].startswith("$L__BB"):
                break
            touches = re.match(
                r"\s+(@!?%p\d+ )?(ld|st|atom|red|cp|mbarrier|bar|wgmma)\.", lines[number]
            )
            if touches is None:
                continue
            if touches[1] is None:
                return False
            traps[number] = f"{touches[1]} trap;\n{lines[number]}"
        return bool(traps) and not self.judge(replaced(lines, traps))

    def _needs_barrier_below(self, line: int) -> bool:
        """Say whether more accesses conflict without the next barrier below a line."""
        barrier = barrier_below(self.text, line)
        without = replaced(self.text.splitlines(), dict.fromkeys(barrier, ""))
        conflicts = self.judge_and_trace(without)[1].conflicts
        return not barrier or not conflicts <= self.original.conflicts

    def covered(self, mutant: Mutant, others: Sequence[Mutant]) -> bool:
        """Say whether what a wait or fence covers is covered by one of the others, or several, too.

        Then more goes wrong without all of them than without the others alone.
        """
        alike = [one for one in others if one.was == mutant.was]
        return any(self._adds(mutant, [one]) for one in others) or self._adds(mutant, alike)

    def _adds(self, mutant: Mutant, others: Sequence[Mutant]) -> bool:
        """Say whether more goes wrong without a mutant's line where those of others are gone."""
        lines = self.text.splitlines()
        gone = {one.line for one in others if one.line != mutant.line}
        if not gone:
            return False
        without = [
            replaced(lines, dict.fromkeys(some, "")) for some in (gone, {*gone, mutant.line})
        ]
        return self._judge_once(without[1]) != self._judge_once(without[0])

    def _judge_once(self, text: str) -> str:
        """Judge a text that may have been judged in this launch; it is not kept decoded."""
        if text not in self._judged:
            known = text in self.programs
            self._judged[text] = self.judge(text)
            if not known:
                self.programs.pop(text, None)
        return self._judged[text]

    @cached_property
    def original(self) -> Trace:
        """The kernel's own accesses."""
        return self.judge_and_trace(self.text)[1]

    def _load(self, text: str) -> Program:
        if text not in self.programs:
            loaded = self.driver.load(text.encode(), self.entry, self.launch.shared_bytes)
            self.programs[text] = loaded.program
        return self.programs[text]

    def _run(self, program: Program, findings: Findings) -> Counters | None:
        for one in self.arrays:
            one.restore(self.driver.memory)
        launch = replace(self.launch, step_limit=self.step_limit)
        return grids.run(program, launch, findings)


@dataclass(frozen=True)
class Contents:
    """What an array held, and which of its bytes had been written (None: all)."""

    low: int
    data: NDArray[np.uint8]
    written: NDArray[np.bool_] | None

    @staticmethod
    def of(memory: GlobalMemory, low: int, high: int) -> Contents:
        """Return a copy of an array, which is an allocation of its own or lies in one."""
        owner = memory.find(low)
        assert owner is not None
        flags = None if owner.written is None else owner.written[low - owner.low : high - owner.low]
        data = memory.bytes_at(low, high - low).copy()
        return Contents(low, data, None if flags is None else flags.copy())

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def restore(self, memory: GlobalMemory) -> None:
        """Put it back."""
        memory.bytes_at(self.low, self.size)[:] = self.data
        owner = memory.find(self.low)
        assert owner is not None
        if self.written is not None and owner.written is not None:
            start = self.low - owner.low
            owner.written[start : start + self.size] = self.written


class _FirstFinding(Findings):
    """Findings of which the first one ends the launch."""

    def add(self, finding: Finding) -> None:
        """Raise what was found."""
        raise KernelError(finding.summary())


_LONGER = 10
"""How many times as many basic blocks as before a mutant may execute: its loop may have no end."""


def record(
    chip: str, run: Callable[[], None], use: Callable[[Recorded], None], mode: Mode = Mode.LAZY
) -> None:
    """Run a kernel on an emulated chip and `use` each launch while its memory is there."""
    launch_once = EmulatedKernel.launch
    programs: dict[str, Program] = {}

    def launch(
        self: EmulatedKernel, grid: Grid, threads: int, arguments: bytes, stream: int = 0
    ) -> None:
        memory = self.driver.memory
        _mark_padding(memory)
        names = [one for one in settings.current().names if one.low < one.high]
        arrays = [Contents.of(memory, one.low, one.high) for one in names]
        launch_once(self, grid, threads, arguments, stream)
        again = Launch(grid, threads, arguments, self.shared_bytes, memory, mode, counting=True)
        after = [memory.bytes_at(one.low, one.size).copy() for one in arrays]
        use(Recorded(self.driver, self.entry, self.text, again, arrays, after, programs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedKernel, "launch", launch)
        patch.setattr(ptxas, "find_ptxas", lambda: None)
        with tile.device(f"emulate:{chip}", mode=mode.value):
            run()


def _mark_padding(memory: GlobalMemory) -> None:
    """Let what `padded` put between rows count as never written."""
    for named in settings.current().names:
        words = memory.bytes_at(named.low, named.high - named.low).view(f"u{named.item_bytes}")
        padding = int.from_bytes(PADDING * (named.item_bytes // len(PADDING)), "little")
        for place in np.flatnonzero(words == padding) if padding else ():
            memory.mark_unwritten(named.low + int(place) * named.item_bytes, named.item_bytes)


# --- verdicts ------------------------------------------------------------------------------------

_STRONGEST_FIRST = (CAUGHT, SURVIVED, NO_EFFECT, NOT_EXECUTED)


class Verdicts:
    """What the launches of one kernel make of its mutants together.

    Attributes:
        found: The strongest verdict of each, by the text that it was made from, line and kind.
        names: What it was.
    """

    def __init__(self, chosen: Callable[[Mutant], bool]) -> None:
        """Begin; `chosen` says of each mutant of a text, in order, whether it is tried."""
        self._chosen = chosen
        self._mutants: dict[str, list[Mutant]] = {}
        self.found: dict[tuple[str, int, str, str], Verdict] = {}

    def add(self, recorded: Recorded) -> None:
        """Try on one more launch what was not caught by those before."""
        text = recorded.text
        if text not in self._mutants:
            self._mutants[text] = [one for one in mutants(text) if self._chosen(one)]
        keys = {one: (text, one.line, one.kind, one.was) for one in self._mutants[text]}
        left = [one for one in keys if self.outcome(keys[one]) != CAUGHT]
        if not left:
            return
        effects = recorded.effects()
        said = {mutant: recorded.verdict(mutant, effects) for mutant in left}
        for mutant in left:
            if mutant.kind in ("wait", "fence") and said[mutant].outcome == SURVIVED:
                near = [one for one in mutants(text) if one.kind == mutant.kind]
                near = [one for one in near if _may_cover(one, mutant)]
                if recorded.covered(mutant, near):
                    said[mutant] = Verdict(NO_EFFECT, f"covered by another {mutant.kind}")
        for mutant, verdict in said.items():
            if verdict.outcome == CAUGHT:
                recorded.programs.pop(mutant.text, None)
            known = self.found.get(keys[mutant], Verdict(NOT_EXECUTED))
            self.found[keys[mutant]] = min(
                known, verdict, key=lambda one: _STRONGEST_FIRST.index(one.outcome)
            )

    def outcome(self, key: tuple[str, int, str, str]) -> str:
        """Return the strongest outcome so far."""
        return self.found.get(key, Verdict(NOT_EXECUTED)).outcome

    def survivors(self) -> list[str]:
        """Return what was taken away and not noticed, though no rule says that it may be."""
        return [
            f"{kind}, line {line}: {was}"
            for (_, line, kind, was), verdict in self.found.items()
            if verdict.outcome == SURVIVED
        ]


def _may_cover(one: Mutant, other: Mutant) -> bool:
    """Say whether two waits or two fences may concern something in common.

    For AMD's waits, that is a counter. Of waits there are many, so they must be near, too.
    """
    if one.kind == "wait" and abs(one.line - other.line) >= _NEAR:
        return False
    first, second = (set(re.findall(r"([a-z]+)cnt", it.was)) - {"wait"} for it in (one, other))
    return not first or not second or not first.isdisjoint(second)


_NEAR = 150
"""Lines within which another wait may cover what one covers."""
