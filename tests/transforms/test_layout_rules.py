"""Layouts through ops: what `backward` asks for, `forward` gives back without moving anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.dialects.layout_shape import broadcast_registers, register_map
from tiledsl.dialects.types import shape_of
from tiledsl.transforms.layout_rules import (
    backward,
    forward,
    is_elementwise,
    is_leaf,
    is_transparent,
    nearest,
    work,
)

from .tile_kernels import Kernel

SHAPE = (4, 8, 2)
_ALIVE: list[ir.Module] = []
"""An op does not keep its module alive."""


def made_by(build: Callable[[Kernel, ir.Value], object]) -> ir.OpView:
    """Give the op that `build` makes of a loaded tile of `SHAPE`, the last one of the kernel."""
    k = Kernel("*f32")
    tile_ = k.reshape(k.load(k.pointers(k.args[0], 64)), *SHAPE)
    build(k, tile_)
    module = k.finish()
    _ALIVE.append(module)
    return list(operations(module.operation))[-2]


OPS: dict[str, Callable[[Kernel, ir.Value], object]] = {
    "trans": lambda k, v: k.trans(v, 2, 0, 1),
    "reshape": lambda k, v: k.reshape(v, 16, 4),
    "expand": lambda k, v: k.expand(v, 1),
    "broadcast": lambda k, v: k.broadcast(k.expand(v, 1), 4, 16, 8, 2),
    "join": lambda k, v: k.join(v, v),
    "split": lambda k, v: k.split(v),
    "cat": lambda k, v: k.cat(v, v, 1),
    "add": lambda k, v: k.op("arith.addf", v, v),
}


def layouts_of(shape: tuple[int, ...]) -> st.SearchStrategy[LinearLayout]:
    orders = st.permutations(range(len(shape))).map(tuple)
    return st.builds(
        default,
        st.just(shape),
        st.just(8),
        st.sampled_from([1, 4]),
        st.sampled_from([1, 2]),
        orders,
    )


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_going_back_and_forward_again_moves_nothing(name: str, data: st.DataObject):
    op = made_by(OPS[name])
    results = op.operation.results
    wanted = nearest(op, data.draw(layouts_of(shape_of(results[0].type))))
    before = backward(op, wanted)
    assert before is not None
    assert before.shape == shape_of(op.operation.operands[0].type)
    if isinstance(op, tile.BroadcastOp):
        assert broadcast_registers(before, wanted) is not None
    else:
        assert register_map(forward(op, before), wanted) is not None


def test_halves_in_different_lanes_are_not_joined():
    op = made_by(OPS["join"])
    apart = default((*SHAPE, 2), 32, 1)  # the last dimension is in the lanes
    assert backward(op, apart) is None
    assert backward(op, nearest(op, apart)) is not None


def test_memory_is_opaque_and_constants_are_leaves():
    load = made_by(lambda k, v: k.load(k.pointers(k.args[0], 64)))
    assert not is_transparent(load)
    leaf = made_by(lambda k, v: k.constant(1, v.type))
    assert is_leaf(leaf)
    assert is_transparent(leaf)
    assert not is_elementwise(leaf)


def test_functions_are_more_work_than_sums():
    exp = made_by(lambda k, v: k.op("math.exp", v))
    add = made_by(OPS["add"])
    trans = made_by(OPS["trans"])
    assert work(exp) > work(add) > work(trans)


def test_an_op_without_a_rule_is_refused():
    load = made_by(lambda k, v: k.load(k.pointers(k.args[0], 64)))
    with pytest.raises(TypeError, match=r"found tile\.load"):
        forward(load, default((64,), 32, 1))
