"""Tuples, named tuples and dataclasses as arguments: names of leaves, and the way back."""

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.specialize import ArgType
from tiledsl.tuples import Parts, is_compound, items_of, nested, parameter_of, run_time_names


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    left: Any
    right: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    only: Any

    def __post_init__(self) -> None:
        if self.only is None:
            raise ValueError("only runs where the caller makes it")


values = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, min_size=1).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.builds(Record, inner, inner)
        | st.builds(Frozen, inner)
    ),
    max_leaves=20,
)


def leaves(name: str, value: object) -> dict[str, object]:
    """Return a value's leaves and classes by name, as a launch does."""
    if not is_compound(value):
        return {name: value}
    items = items_of(value)
    kind = value.__class__
    found: dict[str, object] = {} if kind is tuple else {name: kind}
    for inner, item in zip(Parts([kind, *items]).names(name), items, strict=True):
        found.update(leaves(inner, item))
    return found


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), values))
def test_leaves_come_together_again(arguments: dict[str, object]) -> None:
    flat = {k: v for name, value in arguments.items() for k, v in leaves(name, value).items()}
    assert nested(flat) == arguments
    assert {parameter_of(name) for name in flat} == set(arguments)


def test_constants_among_the_leaves_have_no_run_time_name() -> None:
    number, none = ArgType("i32"), (type(None), None)
    inner = Parts([Record, number, Parts([Pair, none, number])])
    key = [number, (int, 3), Parts([tuple, number, none, inner]), Parts([tuple])]
    assert list(run_time_names("abcd", key)) == ["a", "c.0", "c.2.left", "c.2.right.second"]


def test_what_means_more_than_its_items_is_not_taken_apart() -> None:
    class Color(enum.Enum):
        RED = (1, 2)

    @dataclass
    class Function:
        scale: float

        def __call__(self, x: float) -> float:
            return x * self.scale

    class Other(tuple[int, ...]):
        pass

    assert is_compound((1, 2))
    assert is_compound(Pair(1, 2))
    assert is_compound(Record(1))
    whole: list[object] = [Color.RED, Function(2.0), Other((1,)), [1, 2], Record, {}, None]
    for value in whole:
        assert not is_compound(value)


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        (
            {"a": Record, "a.left": 1},
            "argument `a`: expected items left, right, found left\n"
            "  hint: give the class of a named tuple or dataclass as the constexpr `a`",
        ),
        (
            {"a.left": 1},
            "argument `a`: expected items 0, found left\n"
            "  hint: give the class of a named tuple or dataclass as the constexpr `a`",
        ),
    ],
)
def test_items_that_are_not_the_classes_are_an_error(flat: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError) as raised:
        nested(flat)
    assert str(raised.value).replace("numbered from 0", "0") == message
