"""The rules by which cases are chosen for emulated chips."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.selection import FORMS, by_form, in_turn, lengths
from tiledsl import dtypes

CHIPS = st.integers(1, 10)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abcde"), max_size=40), CHIPS)
def test_each_chip_has_every_subject_and_each_case_some_chip(
    subjects: list[str], chips: int
) -> None:
    chosen = [by_form(subjects, chip, chips) for chip in range(chips)]
    for runs in chosen:
        assert {s for s, yes in zip(subjects, runs, strict=True) if yes} == set(subjects)
    assert all(any(runs[case] for runs in chosen) for case in range(len(subjects)))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), CHIPS)
def test_cases_of_one_subject_are_spread_evenly(cases: int, chips: int) -> None:
    counts = [sum(by_form(["one"] * cases, chip, chips)) for chip in range(chips)]
    assert max(counts) - min(counts) <= 1


def test_with_each_type_the_round_begins_at_another_chip() -> None:
    subjects = [dtype for dtype in "abc" for _ in range(3)]
    forms: dict[int, set[int]] = defaultdict(set)
    for chip in range(3):
        runs = by_form(subjects, chip, 3)
        forms[chip] |= {case % 3 for case, yes in enumerate(runs) if yes}
    assert forms == {0: {0, 1, 2}, 1: {0, 1, 2}, 2: {0, 1, 2}}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), CHIPS, st.integers(-5, 5))
def test_in_turn_each_case_has_one_chip(cases: int, chips: int, test: int) -> None:
    chosen = [in_turn(cases, chip - test, chips) for chip in range(chips)]
    assert all(sum(runs[case] for runs in chosen) == 1 for case in range(cases))


def test_operations_and_types_are_no_forms() -> None:
    assert not FORMS & {"dtype", "source", "target", "left", "right", "name", "precision", "place"}


def test_lengths_of_most_types_share_one_compilation() -> None:
    assert 1 not in lengths(dtypes.int8, full=False)
    assert all(n % 16 for n in lengths(dtypes.int8, full=False))
    assert lengths(dtypes.int32, full=False) == lengths(dtypes.int8, full=True)
