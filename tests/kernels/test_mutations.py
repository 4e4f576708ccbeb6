"""Emulators notice when a kernel's text lacks what it needs: deletions and exchanges of registers.

Of ten good kernels on four chips, one barrier, wait, fence, matrix instruction, predicate or shuffle
is taken away at a time (`mutations` says how, and by which rules a deletion does not matter). Of those
that matter at least 95 % must be noticed. A sample runs everywhere, all of them with --nightly.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.kernels.good_kernels import GOOD
from tests.kernels.mutations import (
    CAUGHT,
    NO_EFFECT,
    NOT_EXECUTED,
    SURVIVED,
    Effects,
    Mutant,
    Recorded,
    mutants,
    record,
    strongest,
    verdicts,
)

CHIPS = ("gfx942", "gfx1201", "sm_80", "sm_90a")
_QUICK = ("softmax", "scan", "argmax", "layer_norm", "transpose", "chained")
"""Kernels whose mutants take least; a chip's sample is of two of them."""
_EACH = 3
"""Mutants of each kind of a kernel in the sample."""


def _matrix() -> Iterator[object]:
    for number, chip in enumerate(CHIPS):
        sampled = (_QUICK[number], _QUICK[-1 - number % 2])
        for name in GOOD:
            marks = () if name in sampled else pytest.mark.nightly
            yield pytest.param(chip, name, marks=marks, id=f"{chip}-{name}")


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
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    names: dict[tuple[int, str], str] = {}

    def use(recorded: Recorded) -> None:
        assert recorded.judge(recorded.text) == ""
        for mutant, said in verdicts(recorded, _sample(nightly)).items():
            key = mutant.line, mutant.kind
            found[key].append(said)
            names[key] = f"{mutant.kind}, line {mutant.line}: {mutant.was}"

    record(chip, GOOD[name], use)
    counts = Counter(strongest(said) for said in found.values())
    survivors = [names[key] for key, said in found.items() if strongest(said) == SURVIVED]
    assert counts[CAUGHT]
    share = counts[CAUGHT] / (counts[CAUGHT] + counts[SURVIVED])
    assert share >= 0.95, (counts, survivors)


def _swapped(text: str, ptx: bool) -> Iterator[str]:
    """Make texts in which two registers of a matrix instruction's operands are exchanged."""
    if ptx:
        form = re.compile(
            r"(mma\.sync[^{]*\{[^}]*\},\s*\{|wgmma\.mma_async[^{]*\{\s*)(%\w+),\s*(%\w+)(?=[,}])"
        )
        for match in form.finditer(text):
            if match[2] != match[3]:
                new = f"{match[1]}{match[3]}, {match[2]}"
                yield text[: match.start()] + new + text[match.end() :]
        return
    form = re.compile(r"^(\s+v_(?:mfma|wmma)_\S+ \S+, )(v\[\d+:\d+\])(?=, v\[)", re.MULTILINE)
    found = list(form.finditer(text))
    for first, second in itertools.pairwise(found):
        if first[2] != second[2]:
            middle = text[first.end() : second.start()]
            yield (
                f"{text[: first.start()]}{first[1]}{second[2]}{middle}{second[1]}{first[2]}"
                f"{text[second.end() :]}"
            )


@pytest.mark.parametrize("chip", CHIPS)
def test_two_registers_of_a_fragment_exchanged_are_noticed(chip: str) -> None:
    def use(recorded: Recorded) -> None:
        texts = list(_swapped(recorded.text, ptx=chip.startswith("sm")))
        assert texts
        for text in texts[:: max(len(texts) // 4, 1)]:
            assert recorded.judge(text)

    record(chip, GOOD["chained"], use)


def test_rules_say_what_does_not_matter() -> None:
    """The harness itself: a mutant that is noticed, and those of no effect."""

    def use(recorded: Recorded) -> None:
        effects = recorded.effects()
        said = {mutant.kind: recorded.verdict(mutant, effects) for mutant in mutants(recorded.text)}
        assert said["shuffle"] == said["barrier"] == CAUGHT
        nowhere = Mutant("barrier", -1, "", "")
        assert recorded.verdict(nowhere, effects) == NOT_EXECUTED
        never = Effects({0}, set())
        unpredicated = Mutant("predicate", 0, "", recorded.text, probe=recorded.text)
        assert recorded.verdict(unpredicated, never) == NO_EFFECT
        assert recorded.verdict(Mutant("shuffle", 0, "", recorded.text), never) == SURVIVED

    record("sm_80", GOOD["scan"], use)
