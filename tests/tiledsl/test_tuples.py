"""Tuples as arguments: names of leaves, and the way back."""

from hypothesis import given
from hypothesis import strategies as st

from tiledsl.specialize import ArgType
from tiledsl.tuples import Parts, is_tuple, nested, parameter_of, run_time_names

values = st.recursive(st.integers(), lambda inner: st.lists(inner, min_size=1).map(tuple), max_leaves=20)  # fmt: skip


def leaves(name: str, value: object) -> dict[str, object]:
    if not is_tuple(value):
        return {name: value}
    return {k: v for i, item in enumerate(value) for k, v in leaves(f"{name}.{i}", item).items()}


@given(st.dictionaries(st.sampled_from("abc"), values))
def test_leaves_come_together_again(arguments: dict[str, object]) -> None:
    flat = {k: v for name, value in arguments.items() for k, v in leaves(name, value).items()}
    assert nested(flat) == arguments
    assert {parameter_of(name) for name in flat} == set(arguments)


def test_constants_among_the_leaves_have_no_run_time_name() -> None:
    number = ArgType("i32")
    key = [number, (int, 3), Parts([number, (type(None), None), Parts([number])]), Parts()]
    assert list(run_time_names("abcd", key)) == ["a", "c.0", "c.2.0"]


def test_a_tuple_of_another_class_is_no_tuple_argument() -> None:
    assert is_tuple((1, 2))
    assert not is_tuple(Parts([1, 2]))
    assert not is_tuple([1, 2])
