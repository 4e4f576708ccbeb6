"""Texts of a kernel, each with one thing taken away or two registers exchanged.

What is taken away is one of

- barrier, wait, fence, matrix, shuffle: that instruction; of an instruction that releases or
  acquires beside what else it does (PTX), that: it becomes a relaxed one;
- predicate (PTX): the guard of an instruction or a branch, which then is always executed or taken;
- predicate (AMD): an instruction that narrows or widens exec; the condition of a branch, which then
  is always taken; or the choice, by a lane's mask, between the address that a load is asked for and
  one that can always be read: the address asked for is taken.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


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


_PTX = {
    "barrier": r"\s+bar(rier)?\.(sync|cta|warp)\S*\s",
    # Of a loop around mbarrier.try_wait, the branch back is what waits.
    "wait": r"\s+(cp\.async\.(wait|commit)|wgmma\.(wait|commit)|@!?\w+\s+bra(\.uni)?\s+again;)",
    "fence": r"\s+(@!?%p\d+\s+)?(?P<ordered>(atom|red)\.(acq_rel|acquire|release)\b)|"
    r"\s+(fence|membar|wgmma\.fence)\b",
    "matrix": r"\s+(mma\.sync|wgmma\.mma_async)\.",
    "shuffle": r"\s+shfl\.sync\.",
    "predicate": r"\s+(?P<guard>@!?%p\d+)\s",
}
EXEC_FORM = r"(s_\w+_saveexec_b\d+|s_\w+_b(32|64) exec(_lo)?,|v_cmpx_)"
WAIT_FORM = r"s_wait(cnt|_\w*cnt)\b"
_AMD = {
    "barrier": r"\s+s_barrier",
    "wait": rf"\s+{WAIT_FORM}",
    "fence": r"\s+(buffer_wbl2|buffer_inv|buffer_gl\d_inv|global_wb|global_inv)\b",
    "matrix": r"\s+v_(mfma|wmma)_",
    "shuffle": r"\s+(ds_(b?permute|swizzle)|v_permlane|v_\w+_dpp)",
    "predicate": rf"\s+({EXEC_FORM}|s_cbranch_)",
}


def barrier_below(text: str, line: int) -> list[int]:
    """Return the lines of the next barrier of AMD's below a line: one, or a signal and a wait."""
    lines = text.splitlines()
    found = [n for n in range(line, len(lines)) if re.match(_AMD["barrier"], lines[n])]
    return found[: 2 if found and "signal" in lines[found[0]] else 1]


def is_ptx(text: str) -> bool:
    """Say which of the two languages a text is in."""
    return ".entry" in text


def mutants(text: str) -> Iterator[Mutant]:
    """Make every mutant of a PTX or AMDGPU text."""
    lines = text.splitlines()
    forms = _PTX if is_ptx(text) else _AMD
    kinds = {kind: re.compile(form) for kind, form in forms.items()}
    for number, line in enumerate(lines):
        for kind, form in kinds.items():
            match = form.match(line)
            if match is not None:
                gone, probe = _without(lines, number, match)
                yield Mutant(kind, number, line.strip(), replaced(lines, gone), probe)
    for number, left in () if is_ptx(text) else _without_choices(lines):
        yield Mutant("predicate", number, lines[number].strip(), replaced(lines, left))


def _without(
    lines: Sequence[str], number: int, match: re.Match[str]
) -> tuple[dict[int, str], str | None]:
    """Return what replaces which lines, and the probe."""
    line = lines[number]
    guard = match.groupdict().get("guard")
    if guard is not None:
        probe = replaced(lines, {number: _trap_where_false(guard) + line})
        return {number: line.replace(guard, "", 1)}, probe
    if match.groupdict().get("ordered"):
        return {number: re.sub(r"\.(acq_rel|acquire|release)\b", ".relaxed", line, count=1)}, None
    if "s_cbranch_" in match[0]:
        return {number: re.sub(r"s_cbranch_\w+", "s_branch", line)}, None
    last = number
    while match.re.pattern in _PTX.values() and ";" not in lines[last]:
        last += 1
    return dict.fromkeys(range(number, last + 1), ""), None


def _trap_where_false(guard: str) -> str:
    other = guard.replace("@!", "@") if "!" in guard else guard.replace("@", "@!")
    return f"{other} trap;\n"


def replaced(lines: Sequence[str], new: dict[int, str]) -> str:
    """Return a text with other lines in places."""
    return "\n".join(new.get(number, line) for number, line in enumerate(lines)) + "\n"


_CHOICE = re.compile(r"(\s*v_(?:dual_)?)cndmask(_b32)(?:_e32|_e64)? (v\d+), (\S+), ([^\s,]+).*")
_WRITTEN = re.compile(r"\s*v_\w+ v\[?(\d+)(?::(\d+))?")
_LOAD = re.compile(r"\s+(?:global|flat)_load_\w+ \S+, v\[(\d+):(\d+)\]")
_REACH = 120
"""Lines above a load in which its address is chosen."""


def _without_choices(lines: Sequence[str]) -> Iterator[tuple[int, dict[int, str]]]:
    """Give, for each load of a chosen address, the choice's line and the lines without it.

    An address has two halves, and each half an instruction.
    """
    seen: set[tuple[int, int]] = set()
    for number, line in enumerate(lines):
        load = _LOAD.match(line)
        if load is None:
            continue
        halves = [(_choice_above(lines, number, int(one)), int(one)) for one in load.groups()]
        places = {place for place, _ in halves if place is not None}
        if any(place is None for place, _ in halves) or seen.issuperset(halves):
            continue
        seen.update((place, one) for place, one in halves if place is not None)
        registers = [one for _, one in halves]
        yield min(places), {place: _unchosen(lines[place], registers) for place in places}


def _choice_above(lines: Sequence[str], load: int, register: int) -> int | None:
    """Return the line that chooses between what a register has and something else."""
    for number in range(load - 1, max(load - _REACH, -1), -1):
        for half in lines[number].split(" :: "):
            written = _WRITTEN.match(half)
            if written is None:
                continue
            if int(written[1]) <= register <= int(written[2] or written[1]):
                return number if _CHOICE.match(half) else None
    return None


def _unchosen(line: str, registers: Sequence[int]) -> str:
    """Return one or two instructions with moves in place of choices that write some registers."""
    halves = line.split(" :: ")
    for number, half in enumerate(halves):
        written = _WRITTEN.match(half)
        if written is not None and int(written[1]) in registers:
            halves[number] = _CHOICE.sub(r"\1mov\2 \3, \5", half)
    return " :: ".join(halves)


# --- lines and instructions ----------------------------------------------------------------------

_INSTRUCTION = re.compile(r"\s+(?:@!?%?\w+\s+)?[a-z](?!\w*:$)")


def instruction_lines(text: str) -> list[int]:
    """Return the line of each instruction; they are numbered in the order of the text."""
    lines = text.splitlines()
    ptx = is_ptx(text)
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


# --- fragments -----------------------------------------------------------------------------------

_FRAGMENT = {
    True: re.compile(
        r"(mma\.sync[^{]*\{[^}]*\},\s*\{|wgmma\.mma_async[^{]*\{\s*)(%\w+),\s*(%\w+)(?=[,}])"
    ),
    False: re.compile(r"^(\s+v_(?:mfma|wmma)_\S+ \S+, )(v\[\d+:\d+\])(?=, v\[)", re.MULTILINE),
}


def exchanged(text: str) -> Iterator[str]:
    """Make texts in which two registers of one matrix instruction's operands are exchanged.

    PTX names the registers. AMD's instructions take neighbours, so there two are exchanged before
    the instruction and back behind it; and the fragments of two instructions are.
    """
    found = list(_FRAGMENT[is_ptx(text)].finditer(text))
    if is_ptx(text):
        for match in found:
            if match[2] != match[3]:
                yield f"{text[: match.end(1)]}{match[3]}, {match[2]}{text[match.end() :]}"
        return
    for match in found:
        low = int(re.findall(r"\d+", match[2])[0])
        swap = f"\tv_swap_b32 v{low}, v{low + 1}\n"
        end = text.index("\n", match.end()) + 1
        yield f"{text[: match.start()]}{swap}{text[match.start() : end]}{swap}{text[end:]}"
    for first, second in itertools.pairwise(found):
        if first[2] != second[2]:
            middle = text[first.end() : second.start()]
            yield (
                f"{text[: first.end(1)]}{second[2]}{middle}{second[1]}{first[2]}"
                f"{text[second.end() :]}"
            )
