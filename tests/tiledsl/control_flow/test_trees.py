"""Values inside containers: children, copies, containers that several names share."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.tiledsl.language.traced import traced
from tiledsl.control_flow import trees
from tiledsl.control_flow.leaves import blank, common_type, fits, leaf_text, own_type
from tiledsl.control_flow.trees import UNSET, Scope
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bool_, float16, float32, int32, int64, pointer_type, uint8, uint64
from tiledsl.language.value import TileType


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Mutable:
    a: Any
    b: Any = 2


@dataclass(frozen=True)
class Frozen:
    a: Any


@dataclass(slots=True)
class Slotted:
    a: Any


class Plain:
    def __init__(self) -> None:
        self.a = 1


class Kind(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "children", "container"),
    [
        ([1, "a"], {0: 1, 1: "a"}, True),
        ((1, 2), {0: 1, 1: 2}, False),
        (Point(1, 2), {0: 1, 1: 2}, False),
        ({"k": 1}, {"k": 1}, True),
        (OrderedDict(k=1), {"k": 1}, True),
        (Mutable(1), {"a": 1, "b": 2}, True),
        (Frozen(1), {"a": 1}, False),
        (Slotted(1), {"a": 1}, True),
        (Plain(), {"a": 1}, True),
    ],
)
def test_nodes_give_and_take_children(value: Any, children: Any, container: bool) -> None:
    assert trees.children(value) == children
    assert trees.is_container(value) == container
    new = {key: f"new {key}" for key in children}
    made = trees.rebuild(value, new)
    assert type(made) is type(value)
    assert trees.children(made) == new
    assert trees.children(value) == children
    if container:
        trees.replace(value, new)
        assert trees.children(value) == new


@pytest.mark.parametrize(
    "value", [None, "text", 3, np.float32(1), int, types, len, Kind.ONE, np.zeros(3), UNSET, {1, 2}]
)
def test_everything_else_has_no_children(value: Any) -> None:
    assert trees.children(value) is None


def test_a_replaced_object_loses_attributes_that_are_gone() -> None:
    plain: Any = Plain()
    plain.extra = 1
    trees.replace(plain, {"a": 5})
    assert vars(plain) == {"a": 5}


def test_containers_are_found_once_through_any_path() -> None:
    shared = [1]
    ring: list[Any] = [shared]
    ring.append(ring)
    found = trees.containers_in([(shared, {"k": Mutable(shared)}), ring, "text", 3])
    assert [id(c) for c in found].count(id(shared)) == 1
    assert len(found) == 4


def test_a_scope_restores_what_was_changed_in_place() -> None:
    state, parts = Mutable([1, 2]), [3]
    env = {"state": state, "parts": parts, "n": 4}
    scope = Scope(["n"], ["state", "parts", "gone"], env)
    state.a.append(5)
    state.b = 7
    parts.clear()
    seen = scope.capture({"n": 9})
    assert seen.bindings == {"n": 9}
    assert seen.children(state.a) == {0: 1, 1: 2, 2: 5}
    scope.restore()
    assert (state, parts) == (Mutable([1, 2]), [3])
    assert scope.before.bindings == {"n": 4}
    assert "".join(scope.path(state.a)) == "state.a"
    assert scope.owner("gone") is UNSET


def test_sameness_is_of_type_and_value() -> None:
    assert trees.same("a", "a")
    assert trees.same(None, None)
    assert trees.same((1, int32), (1, int32))
    assert not trees.same(1, 1.0)
    assert not trees.same(1, True)
    assert not trees.same(np.zeros(2), np.zeros(2))


def test_numbers_take_the_type_that_they_meet() -> None:
    i32, i64, f16 = (TileType(t, ()) for t in (int32, int64, float16))
    assert own_type(3) == i32
    assert own_type(np.uint8(3)) == TileType(uint8, ())
    assert [fits(3, t) for t in (i32, i64, f16)] == [True] * 3
    assert not fits(1.5, i32)
    assert not fits(300, TileType(uint8, ()))
    assert not fits(True, i32)
    assert not fits(1, TileType(bool_, ()))
    assert not fits(0, TileType(pointer_type(int32), ()))
    assert not fits(0, TileType(int32, (4,)))
    assert common_type(1, 2) == i32
    assert common_type(1, 2**40) == i64
    assert common_type(0, 2**63) == TileType(uint64, ())
    assert common_type(1, 2.5) == TileType(float32, ())
    assert common_type(True, False) == TileType(bool_, ())
    assert common_type(np.int64(1), 2) == i64
    assert common_type(np.int64(1), np.int32(2)) is None
    with pytest.raises(KernelError, match=r"^expected integers that fit one type, found -1 and "):
        common_type(-1, 2**63)


def test_blanks_stand_for_values_that_nobody_reads() -> None:
    def blanks(p: Any, x: Any) -> Any:
        made: Any = blank((p, [x, 3], None))
        assert made[1][1:] == [3]
        assert made[2] is None
        return made[0], made[1][0]

    text = str(traced(blanks, pointer_type(float32), (float32, (4,))))
    assert "tile.bitcast" in text
    assert "dense<0.000000e+00> : tensor<4xf32>" in text


def test_texts_of_leaves() -> None:
    assert leaf_text(UNSET) == "no value"
    assert leaf_text(2.5) == "float32 scalar"
    assert leaf_text("a") == "Python str 'a'"
