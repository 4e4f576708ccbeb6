"""One fault of each kind, planted in a kernel or in its text, is reported at the author's line.

A line that is at fault ends in a comment with the fault's name. What the compiler would never do
(leave out a barrier) is planted in the text that it made. `FAULTS` has all of them, `IMPOSSIBLE`
says which kinds a vendor's machine has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.good_kernels import GOOD
from tests.kernels.mutations import Recorded, record
from tiledsl.targets.gpu.emulator.findings import Finding, Kind

NVIDIA, AMD = ("sm_80", "sm_90a"), ("gfx942", "gfx1201")
CHIPS = (*NVIDIA, *AMD)
_SOURCE = Path(__file__).read_text().splitlines()


@dataclass(frozen=True)
class Fault:
    """A fault and what is said of it.

    Attributes:
        kind: Its kind.
        at: The comment at the end of the lines where it may be found.
        plant: Gives the findings on a chip.
        says: What the first finding's message has in it.
        chips: Where it can be planted.
        also: The kind that follows from it.
    """

    kind: Kind
    at: str
    plant: Callable[[str], Sequence[Finding]]
    says: str = ""
    chips: Sequence[str] = CHIPS
    also: Kind | None = None


IMPOSSIBLE = {
    (Kind.DIVERGENT_BARRIER, "gfx942"): "a barrier is the wave's, whichever of its lanes are on",
    (Kind.DIVERGENT_BARRIER, "gfx1201"): "a barrier is the wave's, whichever of its lanes are on",
    (Kind.DEADLOCK, "gfx942"): "only barriers wait, and for waves that have not ended",
    # Planted on gfx1100 instead, whose matrix instructions want operands twice.
    (Kind.UNDEFINED, "gfx942"): "no instruction of it that the emulator knows leaves any undefined",
    (
        Kind.UNDEFINED,
        "gfx1201",
    ): "no instruction of it that the emulator knows leaves any undefined",
}


def lines_of(fault: str) -> set[int]:
    """Return the lines that end in the comment."""
    found = {number for number, line in enumerate(_SOURCE, 1) if line.endswith(f"# {fault}")}
    assert found
    return found


# --- in the kernel -------------------------------------------------------------------------------


def emulated(kernel: Any, *arguments: Any, grid: int = 1, **options: Any) -> Any:
    """Return what gives the findings of a launch of a kernel on a chip."""

    def plant(chip: str) -> Sequence[Finding]:
        copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        report = tile.emulate(kernel, (grid,), copies, target=chip, findings="report", **options)
        return report.findings

    return plant


def _zeros(count: int, dtype: Any = np.float32) -> Any:
    return np.zeros(count, dtype)


@tile.jit
def overrun(x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i) * 2  # reads beyond
    tile.store(out + i, value)


@tile.jit
def overflow(x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i) * 2
    tile.store(out + i, value)  # writes beyond


@tile.jit
def summed(x, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    total = tile.zeros((BLOCK,), tile.float32)
    for k in range(n):
        value = tile.load(x + k * BLOCK + i)  # reads halves beyond
        total += value
    tile.store(out + i, total)


@tile.jit
def unwritten(x, out, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(x + i, i.to(tile.float32), mask=i < BLOCK - 1)
    tile.debug_barrier()
    tile.store(out + i, tile.load(x + i) + 1)  # unwritten


@tile.jit
def crooked(x, out, start, BLOCK: tile.constexpr):
    i = tile.multiple_of(start, 4) + tile.arange(0, BLOCK)
    tile.store(out + tile.arange(0, BLOCK), tile.load(x + i))  # misaligned


@tile.jit
def promised(x, out, start, BLOCK: tile.constexpr):
    i = tile.multiple_of(start, 4) + tile.arange(0, BLOCK)  # broken promise
    tile.store(out + tile.arange(0, BLOCK), tile.load(x + i))


@tile.jit
def all_store(x, out, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i) + tile.program_id(0))  # race of programs


@tile.jit
def assuming(x, n):
    value = tile.load(x)
    tile.device_assert(value > n, "larger than n: {} > 7%!")  # assertion


@tile.jit
def spinning(flag, out):
    while tile.atomic_add(flag, 0) == 0:  # endless
        pass
    tile.store(out, 1)


@tile.jit
def counting(flag, out):
    while tile.atomic_add(flag, 1) >= 0:  # counts for ever
        pass
    tile.store(out, 1)


_IN_KERNELS = [
    Fault(
        Kind.OUT_OF_BOUNDS,
        "reads beyond",
        emulated(overrun, _zeros(1000), _zeros(1024), grid=4, BLOCK=256),
        "argument `x`, element 1000 of an array of 1000 (0 to 999)",
    ),
    Fault(
        Kind.OUT_OF_BOUNDS,
        "writes beyond",
        emulated(overflow, _zeros(1024), _zeros(1000), grid=4, BLOCK=256),
        "argument `out`, element 1000 of an array of 1000 (0 to 999)",
    ),
    Fault(
        Kind.OUT_OF_BOUNDS,
        "reads halves beyond",  # a load and a conversion in one, whose line must be the load's
        emulated(summed, _zeros(1000, np.float16), _zeros(128), 8, BLOCK=128),
        "argument `x`, element 1000 of an array of 1000 (0 to 999)",
    ),
    Fault(
        Kind.UNINITIALIZED,
        "unwritten",
        emulated(unwritten, _zeros(256), _zeros(256), uninitialized=["x"], BLOCK=256),
        "element 25",
    ),
    Fault(
        Kind.MISALIGNED,
        "misaligned",
        emulated(crooked, _zeros(512), _zeros(512), 3, BLOCK=256),
        "asks for alignment to 8",
        NVIDIA,  # AMD reads global memory at any address
    ),
    Fault(
        Kind.ASSERTION,
        "broken promise",
        emulated(promised, _zeros(512), _zeros(512), 3, BLOCK=256, debug=True),
        "multiple_of: expected a multiple of 4 (threads 0 to ",
    ),
    Fault(
        Kind.RACE,
        "race of programs",
        emulated(all_store, _zeros(256, np.int32), _zeros(256, np.int32), grid=2, BLOCK=256),
        "where thread 0 of program (1, 0, 0) stores another value",
    ),
    Fault(
        Kind.ASSERTION,
        "assertion",
        emulated(assuming, np.array([5], np.int32), 7, debug=True),
        "larger than n: {} > 7%! (thread",
    ),
    Fault(
        Kind.ENDLESS,
        "endless",
        emulated(spinning, _zeros(1, np.int32), _zeros(1, np.int32)),
        "and nothing changes any more",
    ),
    Fault(
        Kind.ENDLESS,
        "counts for ever",
        emulated(counting, _zeros(1, np.int32), _zeros(1, np.int32), step_limit=1000),
        "no end after 1,000 steps",
    ),
]


# --- in the text ---------------------------------------------------------------------------------


@tile.jit
def turn_over(x, out, N: tile.constexpr):
    i = tile.arange(0, N)
    value = tile.load(x + i[:, None] * N + i[None, :])  # exchange
    tile.store(out + i[:, None] * N + i[None, :], tile.trans(value))


def _turn_over() -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    turn_over[1,](x, np.zeros_like(x), N=64)


@tile.jit
def product(a, b, c, k, N: tile.constexpr):
    i, j = tile.arange(0, N), tile.arange(0, 32)
    acc = tile.zeros((N, N), tile.float32)
    for start in range(0, k, 32):
        x = tile.load(a + i[:, None] * k + (start + j)[None, :])  # copied
        y = tile.load(b + (start + j)[:, None] * N + i[None, :])  # copied
        acc = tile.dot(x, y, acc)  # copied
    tile.store(c + i[:, None] * N + i[None, :], acc)


@tile.jit
def multiply(a, b, c, N: tile.constexpr):
    i = tile.arange(0, N)
    x = tile.load(a + i[:, None] * N + i[None, :])
    y = tile.load(b + i[:, None] * N + i[None, :])
    z = tile.dot(x, y)  # multiplied
    tile.store(c + i[:, None] * N + i[None, :], z)


@tile.jit
def total(x, out, BLOCK: tile.constexpr):
    value = tile.load(x + tile.arange(0, BLOCK))
    tile.store(out, tile.sum(value, axis=0))  # sum


def _halves(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


def _product() -> None:
    product[1,](_halves(64, 96), _halves(96, 64), np.zeros((64, 64), np.float32), 96, N=64)


def _multiply() -> None:
    multiply[1,](_halves(32, 32), _halves(32, 32), np.zeros((32, 32), np.float32), N=32)


def _total() -> None:
    total[1,](np.ones(512, np.float32), _zeros(1), BLOCK=512)


Replacement = str | Callable[[re.Match[str]], str]


def planted(
    run: Callable[[], None], pattern: str, new: Replacement, count: int = 1
) -> Callable[[str], list[Finding]]:
    """Return what gives the findings of the first launch of `run` with lines of its text changed.

    Without the change there are none.
    """

    def plant(chip: str) -> list[Finding]:
        found: list[list[Finding]] = []

        def use(recorded: Recorded) -> None:
            assert not recorded.findings(recorded.text)
            text, times = re.subn(pattern, new, recorded.text, count=count, flags=re.MULTILINE)
            assert times, "nothing to replace"
            found.append(list(recorded.findings(text)))

        record(chip, run, use)
        return found[0]

    return plant


def _shifted(match: re.Match[str]) -> str:
    """Return an access to LDS two bytes further on."""
    return f"{match[1]} offset:{int(match[2] or 0) + 2}"


def _half_changed(match: re.Match[str]) -> str:
    """Return a matrix instruction behind a change of an operand in half of the lanes."""
    second = re.findall(r"v\[(\d+):", match[0])[1]
    change = f"\tv_not_b32_e32 v{second}, v{second}"
    return f"\ts_mov_b32 exec_lo, 0xffff\n{change}\n\ts_mov_b32 exec_lo, -1\n{match[0]}"


_FOR_ODD_THREADS = (
    "{ .reg .pred %odd; .reg .b32 %t; mov.u32 %t, %tid.x; and.b32 %t, %t, 1;\n"
    "setp.eq.b32 %odd, %t, 1; @%odd bra $L__skip; bar.warp.sync 0xffffffff;\n"
    "$L__skip: bar.sync 0; }"
)
_PTX_BARRIER = r"^\s+bar\.sync\s+0;"
_PTX_STORE, _AMD_STORE = r"^\s+(@%p\d+ )?st\.shared.*$", r"^\s+ds_(write|store).*$"
_RACE = "no barrier after the write by warp"

_IN_TEXTS = [
    Fault(Kind.RACE, "exchange", planted(_turn_over, r"^\s+bar\.sync.*$", ""), _RACE, NVIDIA),
    Fault(Kind.RACE, "exchange", planted(_turn_over, r"^\s+s_barrier$", ""), _RACE, ["gfx942"]),
    Fault(
        Kind.RACE,
        "exchange",
        planted(_turn_over, r"^\s+s_barrier_(signal|wait).*$", "", 2),
        _RACE,
        ["gfx1201"],
    ),
    Fault(Kind.UNINITIALIZED, "exchange", planted(_turn_over, _PTX_STORE, ""), "", NVIDIA),
    Fault(Kind.UNINITIALIZED, "exchange", planted(_turn_over, _AMD_STORE, ""), "", AMD),
    Fault(
        Kind.MISSING_WAIT,
        "copied",
        planted(_product, r"^\s+cp\.async\.wait_group.*$", "", 99),
        "that an asynchronous operation is still using",
        NVIDIA,
    ),
    Fault(
        Kind.MISSING_WAIT,
        "exchange",
        planted(_turn_over, r"^\s+s_wait(cnt vmcnt|_loadcnt).*$", ""),
        "used before a wait for what `global_load",
        AMD,
    ),
    Fault(
        Kind.MISALIGNED,
        "exchange",
        planted(_turn_over, r"^(\s+ds_(?:write|store)_b\d+ .*?)(?: offset:(\d+))?$", _shifted),
        "shared memory",
        AMD,
        Kind.UNINITIALIZED,  # nothing was written
    ),
    Fault(
        Kind.DEADLOCK,
        "exchange",
        planted(_turn_over, _PTX_BARRIER, "\tbar.sync 0, 256;"),
        "128 wait for barrier 0",
        NVIDIA,
    ),
    Fault(
        Kind.DEADLOCK,
        "exchange",
        planted(_turn_over, r"^\s+s_barrier_signal.*$", ""),
        "wait for the other waves' s_barrier_signal",
        ["gfx1201"],
    ),
    Fault(
        Kind.DIVERGENT_BARRIER,
        "exchange",
        planted(_turn_over, _PTX_BARRIER, _FOR_ODD_THREADS),
        "",
        NVIDIA,
    ),
    Fault(
        Kind.UNDEFINED,
        "sum",
        planted(_total, r"(shfl\.sync.*), -1;", r"\1, 1;"),
        "lane 1 is not in its own mask",
        NVIDIA,
    ),
    Fault(
        Kind.UNDEFINED,
        "multiplied",
        planted(_multiply, r"^\s+v_wmma.*$", _half_changed),
        "lanes 0 to 15 and 16 to 31 hold different operands",
        ["gfx1100"],
    ),
]


# --- all of them ---------------------------------------------------------------------------------

FAULTS = [*_IN_KERNELS, *_IN_TEXTS]


def _cases() -> Iterator[object]:
    for fault in FAULTS:
        for chip in fault.chips:
            yield pytest.param(fault, chip, id=f"{fault.kind.name}-{fault.at}-{chip}")


def test_every_kind_is_planted_wherever_it_can_be() -> None:
    planted_on = {(fault.kind, chip) for fault in FAULTS for chip in fault.chips}
    assert {(kind, chip) for kind in Kind for chip in CHIPS} - planted_on == set(IMPOSSIBLE)


@pytest.mark.parametrize(("fault", "chip"), list(_cases()))
def test_a_fault_is_found_at_its_line(fault: Fault, chip: str) -> None:
    findings = fault.plant(chip)
    assert {one.kind for one in findings} - {fault.also} == {fault.kind}
    findings = [one for one in findings if one.kind == fault.kind]
    assert fault.says in findings[0].message
    for finding in findings:
        source = finding.instruction.source
        assert source is not None
        assert Path(source.file).name == Path(__file__).name
        assert source.line in lines_of(fault.at), str(finding)


@tile.jit
def turned(x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(x + i, i + 1)  # first side
    tile.store(out + i, tile.load(x + (2 * BLOCK - 1 - i)))  # second side


@pytest.mark.parametrize("chip", CHIPS)
def test_a_race_names_both_sides(chip: str) -> None:
    (first, second) = (lines_of(side).pop() for side in ("first side", "second side"))
    arrays = _zeros(512, np.int32), _zeros(512, np.int32)
    finding = emulated(turned, *arrays, grid=2, BLOCK=256)(chip)[0]
    assert finding.kind == Kind.RACE
    assert finding.instruction.source is not None
    assert finding.instruction.source.line == second
    assert re.search(
        r"^read of argument `x`, element \d+ of 512 by warp \d: nothing orders it after the write "
        rf"by warp \d of program \(1, 0, 0\) at line {first} \(`",
        finding.message,
    )
    span = finding.other_span()
    assert span is not None
    assert span.line == first


@pytest.mark.parametrize("chip", CHIPS)
def test_a_finding_names_the_program_and_the_thread(chip: str) -> None:
    first = FAULTS[0].plant(chip)[0]
    assert first.block == (3, 0, 0)
    assert first.thread is not None
    assert "in program (3, 0, 0), thread" in first.summary()


# --- and in no good kernel -----------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["sm_90a"])  # the whole suite says it of the others
@pytest.mark.parametrize("name", GOOD)
def test_good_kernels_give_no_findings(chip: str, name: str) -> None:
    launches = 0

    def use(recorded: Recorded) -> None:
        nonlocal launches
        launches += 1
        assert not recorded.findings(recorded.text)

    record(chip, GOOD[name], use)
    assert launches
