"""Emulators notice when a kernel's text lacks what it needs: deletions and exchanges of registers.

Of eleven good kernels on four chips, one barrier, wait, fence, matrix instruction, predicate or shuffle
is taken away at a time (`mutants` says how, `mutations` by which rules a deletion does not matter).
Of those that matter at least 95 % must be noticed, and what is not must be explained here. A sample
runs everywhere, all of them with --nightly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.kernels.good_kernels import GOOD, GOOD_ON_HOPPER, scan_kernel
from tests.kernels.mutants import Mutant, exchanged, mutants
from tests.kernels.mutations import (
    CAUGHT,
    NO_EFFECT,
    NOT_EXECUTED,
    SURVIVED,
    Effects,
    Recorded,
    Verdicts,
    record,
)

CHIPS = ("gfx942", "gfx1201", "sm_80", "sm_90a")
_QUICK = ("softmax", "scan", "argmax", "transpose", "histogram", "chained")
"""Kernels whose mutants take least; a chip's sample is of two of them."""
_EACH = 3
"""Mutants of each kind of a kernel in the sample."""
_LAUNCHES = 3
"""Launches of a kernel in the sample."""


def _matrix() -> Iterator[object]:
    for number, chip in enumerate(CHIPS):
        sampled = (_QUICK[number], _QUICK[-1 - number % 2])
        for name in GOOD:
            marks = () if name in sampled else pytest.mark.nightly
            yield pytest.param(chip, name, marks=marks, id=f"{chip}-{name}")
    for name in GOOD_ON_HOPPER:
        yield pytest.param("sm_90a", name, marks=pytest.mark.nightly, id=f"sm_90a-{name}")


def _sample(nightly: bool) -> Callable[[Mutant], bool]:
    """Return what chooses mutants: all, or a few of each kind, from all over the text."""
    seen: Counter[str] = Counter()

    def chosen(mutant: Mutant) -> bool:
        seen[mutant.kind] += 1
        count = seen[mutant.kind]
        return nightly or (count % 4 == 1 and count < 4 * _EACH)

    return chosen


@pytest.mark.parametrize(("chip", "name"), list(_matrix()))
def test_deletions_that_matter_are_noticed(
    chip: str, name: str, request: pytest.FixtureRequest
) -> None:
    nightly = bool(request.config.getoption("--nightly"))
    verdicts = Verdicts(_sample(nightly))
    launches = 0

    def use(recorded: Recorded) -> None:
        nonlocal launches
        launches += 1
        if nightly or launches <= _LAUNCHES:
            assert recorded.judge(recorded.text) == ""
            verdicts.add(recorded)

    record(chip, (GOOD | GOOD_ON_HOPPER)[name], use)
    counts = Counter(verdict.outcome for verdict in verdicts.found.values())
    assert counts[CAUGHT]
    share = counts[CAUGHT] / (counts[CAUGHT] + counts[SURVIVED])
    assert share >= 0.95, (counts, verdicts.survivors())
    assert verdicts.survivors() == []


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    "name",
    ["chained", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("matmul", "attention"))],
)
def test_two_registers_of_a_fragment_exchanged_are_noticed(
    chip: str, name: str, request: pytest.FixtureRequest
) -> None:
    every = bool(request.config.getoption("--nightly"))
    unnoticed: dict[str, list[str]] = {}

    def use(recorded: Recorded) -> None:
        if recorded.text not in unnoticed:
            texts = list(exchanged(recorded.text))
            assert texts
            unnoticed[recorded.text] = texts if every else texts[:: max(len(texts) // 4, 1)]
        left = unnoticed[recorded.text]
        left[:] = [text for text in left if not recorded.judge(text)]

    record(chip, GOOD[name], use)
    assert list(unnoticed.values()) == [[]]


def test_rules_say_what_does_not_matter() -> None:
    """The harness itself: a mutant that is noticed, and those of no effect."""

    def use(recorded: Recorded) -> None:
        effects = recorded.effects()
        said = {mutant.kind: recorded.verdict(mutant, effects) for mutant in mutants(recorded.text)}
        assert said["shuffle"].outcome == said["barrier"].outcome == CAUGHT
        nowhere = Mutant("barrier", -1, "", "")
        assert recorded.verdict(nowhere, effects).outcome == NOT_EXECUTED
        first = Effects({0})
        same = Mutant("predicate", 0, "", recorded.text)
        assert recorded.verdict(same, first).why == "same accesses"
        assert recorded.verdict(same, first).outcome == NO_EFFECT
        guarded = Mutant("predicate", 0, "", recorded.text, probe=recorded.text)
        assert recorded.verdict(guarded, first).why == "guard always true"
        fence = Mutant("fence", 0, "membar.gl", recorded.text)
        assert recorded.verdict(fence, first).why == "nothing passes between warps"
        assert recorded.verdict(Mutant("shuffle", 0, "", recorded.text), first).outcome == SURVIVED
        idle = Effects({0}, idle={0})
        assert recorded.verdict(Mutant("wait", 0, "", recorded.text), idle).outcome == NO_EFFECT

    def scan_once() -> None:
        x = np.arange(1000, dtype=np.int32)
        scan_kernel[1,](x, np.full_like(x, 77), 1000, BLOCK=1024)

    record("sm_80", scan_once, use)
