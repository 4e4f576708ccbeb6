"""Take an instruction away from a kernel's text and see whether the emulator notices.

`record` runs a kernel that is right and hands over each of its launches, with the memory before and
after it. `Recorded.judge` runs another text over the same memory and says what gives it away: a
finding, a wrong result, or nothing. `mutants` makes the texts, each without one instruction of a kind
or one predicate.

A deletion that nothing gives away does not matter where a rule says so, and `Recorded.verdict` tries
them in turn:

- the launch does not execute the instruction;
- predicate (PTX): it is true wherever it is evaluated, which a trap under the opposite shows;
- predicate (AMD), an instruction that sets exec: it never changes it;
- predicate: without it every store and atomic is to the same bytes all the same. Masks are nested
  (what it restores is masked off again), lanes are replicas (all of which write the same to one
  place), or what a lane reads that should not, inside the array, nobody stores;
- wait (AMD): no load that it waits for is still under way, because an earlier wait covers it; or
  without it a later one covers the loads, for taking both away is noticed;
- barrier: without it, still no two warps touch one byte between two barriers, one of them writing;
- fence of global memory: programs of these kernels pass each other nothing but atomics' results;
- fence for NVIDIA's asynchronous proxy: without a branch, no plain write to shared memory comes
  between the one before and it, or nothing that the proxy does between it and the next one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator import engine
from tiledsl.targets.gpu.emulator import grid as grids
from tiledsl.targets.gpu.emulator.barriers import Barriers
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel, EmulatorDriver
from tiledsl.targets.gpu.emulator.findings import Finding, Findings
from tiledsl.targets.gpu.emulator.launch import Launch, Program
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.shared_memory import SharedMemory
from tiledsl.targets.nvptx import ptxas


@dataclass(frozen=True)
class Mutant:
    """A kernel's text with one thing taken away.

    Attributes:
        kind: What was: "barrier", "wait", "fence", "matrix", "predicate" or "shuffle".
        line: The line, from 0, of the text.
        was: That line.
        text: All of the new text.
        probe: The old text, but it traps where the predicate taken away is false; or None.
    """

    kind: str
    line: int
    was: str
    text: str
    probe: str | None = None


# --- texts ---------------------------------------------------------------------------------------

_PTX = {
    "barrier": r"\s+bar(rier)?\.(sync|cta|warp)\S*\s",
    "wait": r"\s+(cp\.async\.(wait|commit)\S*|mbarrier\.(try|test)_wait\S*|wgmma\.(wait|commit)\S*)",
    "fence": r"\s+(fence|membar|wgmma\.fence)\b",
    "matrix": r"\s+(mma\.sync|wgmma\.mma_async)\.",
    "shuffle": r"\s+shfl\.sync\.",
    "predicate": r"\s+(?P<guard>@!?%p\d+)\s+(?!bra)",
}
_AMD = {
    "barrier": r"\s+s_barrier",
    "wait": r"\s+s_wait(cnt|_\w*cnt)\b",
    "fence": r"\s+(buffer_wbl2|buffer_inv|buffer_gl\d_inv|global_wb|global_inv)\b",
    "matrix": r"\s+v_(mfma|wmma)_",
    "shuffle": r"\s+(ds_(b?permute|swizzle)|v_permlane|v_\w+_dpp)",
    "predicate": r"\s+(s_and_saveexec_b\d+|s_or_b\d+ exec(_lo)?, exec(_lo)?,)",
}


_BETWEEN_PROGRAMS = re.compile(
    r"membar|fence\.(acq_rel|sc|acquire|release)|buffer_(wbl2|inv|gl)|global_(wb|inv)"
)


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
        if re.match(rf"{form}|\$\w+:|(@!?%p\d+\s+)?bra\b", line):
            return True
    return False


def mutants(text: str) -> Iterator[Mutant]:
    """Make every mutant of a PTX or AMDGPU text."""
    ptx = ".entry" in text
    kinds = {kind: re.compile(form) for kind, form in (_PTX if ptx else _AMD).items()}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for kind, form in kinds.items():
            match = form.match(line)
            if match is None:
                continue
            last = number
            while ptx and ";" not in lines[last]:
                last += 1
            gone = dict.fromkeys(range(number, last + 1), "")
            probe = None
            if kind == "predicate" and ptx:
                gone = {number: line.replace(match["guard"], "", 1)}
                probe = _replaced(lines, {number: _trap_where_false(match["guard"]) + line})
            yield Mutant(kind, number, line.strip(), _replaced(lines, gone), probe)


def _trap_where_false(guard: str) -> str:
    other = guard.replace("@!", "@") if "!" in guard else guard.replace("@", "@!")
    return f"{other} trap;\n"


def _replaced(lines: Sequence[str], replaced: dict[int, str]) -> str:
    return "\n".join(replaced.get(number, line) for number, line in enumerate(lines)) + "\n"


_INSTRUCTION = re.compile(r"\s+(?:@!?%p\d+\s+)?(?P<mnemonic>[a-z]\w*)")


def instruction_lines(text: str) -> list[int]:
    """Return the line of each instruction; they are numbered in the order of the text."""
    lines = text.splitlines()
    ptx = ".entry" in text
    first = next(i for i, one in enumerate(lines) if one == "{" or re.match(r"[A-Za-z_]\w*:", one))
    numbers: list[int] = []
    inside = False
    for number, line in enumerate(lines[first:], first):
        if re.match(r"\.Lfunc_end|}", line):
            break
        starts = not inside and _INSTRUCTION.match(line) is not None
        if starts:
            numbers.append(number)
        inside = ptx and (inside or starts) and ";" not in line
    return numbers


# --- launches ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effects:
    """What the instructions of a text do in one launch, by line.

    Attributes:
        executed: Lines that are executed.
        idle: Lines of AMD's waits and writes to exec that never change anything.
    """

    executed: set[int]
    idle: set[int]


@dataclass(frozen=True)
class Recorded:
    """A launch of a kernel that is right; it can be used only while `record` calls back."""

    driver: EmulatorDriver
    entry: str
    text: str
    launch: Launch
    before: Sequence[tuple[int, bytes, bytes | None]]
    after: Sequence[tuple[int, bytes, bytes | None]]

    def judge(self, text: str) -> str:
        """Run another text over the memory as it was; returns what gives it away, "" if nothing."""
        findings = Findings()
        try:
            self._run(self._load(text), findings)
            findings.raise_or_warn(self.entry, warn=False)
        except (KernelError, CompilerBug) as error:
            return error.message
        known = {low for low, _, _ in self.before}
        found = [one for one in self.driver.memory.snapshot() if one[0] in known]
        return "" if found == self.after else "wrong result"

    def findings(self, text: str) -> Sequence[Finding]:
        """Run another text over the memory as it was; returns what it does wrong."""
        findings = Findings()
        self._run(self._load(text), findings)
        return findings.all()

    def effects(self) -> Effects:
        """Run the kernel as it is and look at its instructions."""
        program = self._load(self.text)
        lines = instruction_lines(self.text)
        assert len(lines) == len(program.instructions), "a line was not understood"
        idle = _watched(program)
        counters = self._run(program, Findings())
        assert counters is not None
        executed = {
            lines[instruction.index]
            for block in counters.blocks
            for instruction in program.blocks[block].instructions
        }
        return Effects(executed, {lines[index] for index in idle})

    def verdict(self, mutant: Mutant, effects: Effects) -> str:
        """Say what this launch makes of a mutant."""
        if mutant.line not in effects.executed:
            return NOT_EXECUTED
        if self.judge(mutant.text):
            return CAUGHT
        if (
            _BETWEEN_PROGRAMS.match(mutant.was) is not None
            or (mutant.was.startswith(_PROXY) and _orders_nothing(self.text, mutant.line))
            or mutant.line in effects.idle
            or (mutant.probe is not None and not self.judge(mutant.probe))
            or (mutant.kind == "barrier" and not self._trace(mutant.text).conflicts())
            or (
                mutant.kind == "predicate"
                and self._trace(mutant.text).written == self._trace(self.text).written
            )
        ):
            return NO_EFFECT
        return SURVIVED

    def _load(self, text: str) -> Program:
        shared_bytes = self.launch.shared_bytes
        return self.driver.load(text.encode(), self.entry, shared_bytes).program

    def _run(self, program: Program, findings: Findings) -> Counters | None:
        self.driver.memory.restore(self.before)
        return grids.run(program, self.launch, findings)

    def covered(self, mutant: Mutant, others: Sequence[Mutant]) -> bool:
        """Say whether what a wait covers is covered by one of the others, too."""
        lines = self.text.splitlines()
        return any(
            self.judge(_replaced(lines, dict.fromkeys((mutant.line, other.line), "")))
            for other in others
            if other.line != mutant.line
        )

    def _trace(self, text: str) -> Trace:
        """Run a text and return all its accesses to memory."""
        with pytest.MonkeyPatch.context() as patch:
            trace = Trace(patch, [(low, low + len(content)) for low, content, _ in self.before])
            self._run(self._load(text), Findings())
        return trace


def record(
    chip: str, run: Callable[[], None], use: Callable[[Recorded], None], mode: Mode = Mode.LAZY
) -> None:
    """Run a kernel on an emulated chip and `use` each launch while its memory is there."""
    launch_once = EmulatedKernel.launch

    def launch(
        self: EmulatedKernel, grid: Grid, threads: int, arguments: bytes, stream: int = 0
    ) -> None:
        memory = self.driver.memory
        before = memory.snapshot()
        launch_once(self, grid, threads, arguments, stream)
        again = Launch(grid, threads, arguments, self.shared_bytes, memory, mode, counting=True)
        after = memory.snapshot()
        use(Recorded(self.driver, self.entry, self.text, again, before, after))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedKernel, "launch", launch)
        patch.setattr(ptxas, "find_ptxas", lambda: None)
        patch.setattr(engine, "LIMIT", 100_000)  # without a mask, a loop may have no end
        with tile.device(f"emulate:{chip}", mode=mode.value):
            run()


# --- looking at instructions ---------------------------------------------------------------------


def _watched(program: Program) -> set[int]:
    """Watch a program of AMD's; returns those waits and writes to exec that change nothing so far."""
    idle: set[int] = set()
    for block in program.blocks:
        guarded: list[Any] = getattr(block, "guarded", [])
        for position, (step, registers, instruction) in enumerate(guarded):
            look = _looks_at(instruction.text)
            if look is not None:
                idle.add(instruction.index)
                watched = _watching(step, look, instruction.index, idle)
                guarded[position] = watched, registers, instruction
    return idle


def _looks_at(text: str) -> Callable[[Any], object] | None:
    """Return what sees the effect of an instruction on a machine."""
    if re.match(_AMD["wait"].removeprefix(r"\s+"), text):
        return lambda machine: sum(
            int(one.waiting.sum()) for one in machine.memory.waits._operations if one.registers
        )
    if re.match(_AMD["predicate"].removeprefix(r"\s+"), text):
        return lambda machine: machine._exec.tobytes()
    return None


def _watching(step: Any, look: Callable[[Any], object], index: int, idle: set[int]) -> Any:
    def watched(machine: Any) -> None:
        before = look(machine)
        step(machine)
        if look(machine) != before:
            idle.discard(index)

    return watched


class Trace:
    """Every access to memory of a run: whose, between which barriers, which bytes, whether it writes.

    It knows nothing of clocks: between two barriers that all warps of a block pass, any two accesses
    of different warps count as unordered. Barriers that only some warps pass are not used here.
    """

    def __init__(self, patch: pytest.MonkeyPatch, arrays: Sequence[tuple[int, int]]) -> None:
        """Begin to watch; of global memory, only the bytes of some arrays are of interest."""
        self._arrays = arrays
        self._barriers: list[Barriers] = []
        self._rows: list[tuple[Any, Any, bool]] = []
        self.written: Counter[tuple[str, bytes]] = Counter()
        """By store and atomic, which addresses it is to, each once but for atomics."""
        begin = Barriers.__init__

        def made(barriers: Barriers, *arguments: Any, **options: Any) -> None:
            begin(barriers, *arguments, **options)
            self._barriers.append(barriers)

        patch.setattr(Barriers, "__init__", made)
        for owner in (SharedMemory, GlobalMemory):
            self._spy(patch, owner, "load", writes=False)
            self._spy(patch, owner, "store", writes=True)
            self._spy(patch, owner, "update", writes=None)
        self._spy(patch, SharedMemory, "begin_copy", writes=True)
        self._spy(patch, SharedMemory, "begin_read", writes=False)

    def _spy(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, *, writes: bool | None
    ) -> None:
        """Watch a method; `writes` is None for atomics, which conflict with nothing."""
        original = getattr(owner, name)

        def spied(memory: Any, access: Any, address: Any, *rest: Any, **options: Any) -> Any:
            if owner is SharedMemory:
                look(access, address, rest, options)
            else:  # of constants, which are elsewhere for each text, only that they are read
                look(access, np.where(self._is_of_interest(address), address, 0), rest, options)
            return original(memory, access, address, *rest, **options)

        def look(access: Any, address: Any, rest: Any, options: Any) -> None:
            if writes is not False:
                rows = np.sort(address) if writes is None else np.unique(address)
                text = re.sub(r"^@!?%p\d+\s+", "", access.instruction.text)
                self.written[text, rows.tobytes()] += 1
            if writes is not None:
                width = self._width(name, rest, options)
                self._note(access, address, width, writes, owner is SharedMemory)

        patch.setattr(owner, name, spied)

    def _is_of_interest(self, address: Any) -> Any:
        inside = np.zeros(len(address), np.bool_)
        for low, high in self._arrays:
            inside |= (address >= low) & (address < high)
        return inside

    @staticmethod
    def _width(name: str, rest: tuple[Any, ...], options: dict[str, Any]) -> int:
        if name.startswith("begin"):
            return int(rest[0])
        rest = rest[1:] if name == "store" else rest
        return int(rest[0]) * int(rest[1] if len(rest) > 1 else options.get("count", 1))

    def _note(self, access: Any, address: Any, width: int, writes: bool, shared: bool) -> None:
        if not len(address):
            return
        cohort = access.cohort
        block = cohort.block_of[access.lanes]
        phase = self._barriers[-1].phase.sum(1)[block]
        byte = address.astype(np.int64)[:, None] + np.arange(width)
        if not shared:
            byte += 1 << 48
        owner = np.stack((block, phase, cohort.warp_of[access.lanes]), axis=1)
        keys = np.concatenate((owner.repeat(width, axis=0), byte.reshape(-1, 1)), axis=1)
        self._rows.append((len(self._barriers), np.unique(keys, axis=0), writes))

    def conflicts(self) -> bool:
        """Say whether any two accesses are unordered and conflict."""
        if not self._rows:
            return False
        rows = np.concatenate(
            [
                np.insert(np.insert(keys, 0, cohort, 1), 5, writes, 1)
                for cohort, keys, writes in self._rows
            ]
        )  # columns: cohort, block, phase, warp, byte, writes
        place, number = np.unique(rows[:, [0, 1, 2, 4]], axis=0, return_inverse=True)
        number = number.ravel()
        low = np.full(len(place), 1 << 30)
        high = np.full(len(place), -1)
        np.minimum.at(low, number, rows[:, 3])
        np.maximum.at(high, number, rows[:, 3])
        written = np.zeros(len(place), np.bool_)
        written[number[rows[:, 5] > 0]] = True
        return bool((written & (low != high)).any())


# --- verdicts ------------------------------------------------------------------------------------


def verdicts(recorded: Recorded, chosen: Callable[[Mutant], bool]) -> dict[Mutant, str]:
    """Say what one launch makes of the chosen mutants of its kernel."""
    effects = recorded.effects()
    found = {
        mutant: recorded.verdict(mutant, effects)
        for mutant in mutants(recorded.text)
        if chosen(mutant)
    }
    unnoticed = [
        one for one, said in found.items() if one.kind == "wait" and said in (SURVIVED, NO_EFFECT)
    ]
    for mutant in unnoticed:
        if found[mutant] == SURVIVED and recorded.covered(mutant, unnoticed):
            found[mutant] = NO_EFFECT
    return found


CAUGHT, SURVIVED, NO_EFFECT, NOT_EXECUTED = "caught", "survived", "no effect", "not executed"
_STRONGEST_FIRST = (CAUGHT, SURVIVED, NO_EFFECT, NOT_EXECUTED)


def strongest(verdicts: Sequence[str]) -> str:
    """Return what several launches make of a mutant together."""
    return min(verdicts, key=_STRONGEST_FIRST.index)
