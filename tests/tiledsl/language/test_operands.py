"""Arguments of functions: values, types, shapes and indices; and constants in MLIR."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr, float16, float32, int8, int32, uint64
from tiledsl.language import core, operands
from tiledsl.language.value import TileType, constant, describe


class Color(enum.IntEnum):
    RED = 7


def test_numbers_of_every_kind_become_values() -> None:
    def several() -> Any:
        numbers = (True, 3, 2**40, 1.5, np.int8(-3), np.float64(0.1), constexpr(4), Color.RED)
        return tuple(operands.as_value(n) for n in numbers)

    got = evaluated(several)
    assert [g.dtype.name for g in got] == [
        *("bool", "int32", "int64", "float32", "int8", "float64", "int32", "int32"),
    ]  # fmt: skip
    assert [g.item() for g in got] == [True, 3, 2**40, 1.5, -3, 0.1, 4, 7]


def test_shapes_broadcast() -> None:
    def shapes(x: Any) -> Any:
        a, b = core.zeros((4, 1)), core.zeros((8,))
        first, second, third = operands.broadcast_values(a, b, x, what="`f`")
        assert first.shape == second.shape == third.shape == (4, 8)
        return operands.broadcast_to(x, (2, 2))

    assert evaluated(shapes, np.float32(3)).tolist() == [[3, 3], [3, 3]]
    assert operands.broadcast_shapes((4, 1), (8,)) == (4, 8)
    assert operands.broadcast_shapes((4,), (8,)) is None


def test_new_dimensions_and_ellipsis() -> None:
    def indexed(x: Any) -> Any:
        shapes = [x[:, None], x[None], x[None, :, None], x[..., None], x[:], x[None, ...]]
        assert [v.shape for v in shapes] == [(4, 1), (1, 4), (1, 4, 1), (4, 1), (4,), (1, 4)]
        y = x[:, None] + core.zeros((4, 8), int32)
        assert [v.shape for v in (y[:, None], y[..., None], y[None, ..., None, :])] == [
            (4, 1, 8), (4, 8, 1), (1, 4, 1, 8),
        ]  # fmt: skip
        scalar = operands.as_value(3)
        assert [v.shape for v in (scalar[None], scalar[None, None], scalar[...])] == [
            (1,),
            (1, 1),
            (),
        ]
        assert (y.T.shape, x.T is x, len(y), y.numel, y.ndim) == ((8, 4), True, 4, 32, 2)
        return y.T

    got = evaluated(indexed, np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(got, np.tile(np.arange(4), (8, 1)))


def test_types_of_values_read_as_tritons() -> None:
    def types(p: Any, x: Any) -> None:
        assert p.type.element_ty is float32
        assert p.type.is_ptr()
        assert p.dtype.element_ty is float32
        assert x.type.scalar is x.type.element_ty is int32
        assert x.type.is_block()
        assert (str(x.type), str(p.type)) == ("int32 (4,)", "pointer<float32>")
        assert x.type == TileType(int32, (4,))
        assert repr(x) == "<tile value int32 (4,)>"

    from tiledsl.dtypes import pointer_type

    traced(types, pointer_type(float32), (int32, (4,)))


def test_constants_are_rounded_to_their_type() -> None:
    text = str(
        traced(lambda: (constant(2049.0, float16), constant(2**64 - 1, uint64), constant(-3, int8)))
    )
    assert "2.048000e+03 : f16" in text
    assert "-1 : i64" in text
    assert "-3 : i8" in text
    with pytest.raises(KernelError, match=r"^expected an integer that fits int8 \(-128 to 127\)"):
        traced(lambda: constant(128, int8))


def test_descriptions() -> None:
    assert describe(None) == "None"
    assert describe(constexpr(3)) == "Python int 3"
    assert describe("x" * 100) == "Python str '" + "x" * 59


def test_integers_known_at_compile_time() -> None:
    assert operands.static_int(constexpr(4), "n") == 4
    assert operands.static_int(np.int64(5), "n") == 5
    assert operands.static_shape(8) == (8,)
    assert operands.static_shape([constexpr(2), 4]) == (2, 4)
    for wrong, words in (
        (True, "Python bool True"),
        ("4", "Python str '4'"),
        (4.0, "Python float 4.0"),
    ):
        with pytest.raises(KernelError) as found:
            operands.static_int(wrong, "`n`")
        assert str(found.value) == (
            f"expected `n` to be an integer known at compile time, found {words}"
        )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: operands.broadcast_to(x, (8,)), "expected a shape that broadcasts to (8,), found "
         "(4,)"),
        (lambda x: x[1:], "expected `None` and `:` as indices of a tile, found `1:`\n"
         "  hint: elements are picked while they are loaded, by their pointers"),
        (lambda x: x[x], "expected `None` and `:` as indices of a tile, found int32 tile of shape "
         "(4,)\n  hint: elements are picked while they are loaded, by their pointers"),
        (lambda x: x.__setitem__(0, 1), "expected no assignment to elements: tiles are values\n"
         "  hint: tile.where(condition, new, old) makes a changed tile"),
        (lambda x: 3 in x, "expected a list or another Python container, found a run-time value"),
        (lambda x: len(operands.as_value(3)), "expected a tile, found int32 scalar"),
        (lambda x: x - [1], "expected a tile or a number, found Python list [1]"),
    ],
)  # fmt: skip
def test_messages(function: Any, message: str) -> None:
    with pytest.raises(KernelError) as found:
        traced(function, (int32, (4,)))
    assert str(found.value) == message
