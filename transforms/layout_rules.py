"""How layouts pass through each op, forward and backward, so that no element changes its thread.

`forward` gives the layout of an op's results from that of its operands; `backward` gives the layout
that an op's operands must have for a wanted result to cost nothing. `layout_inference` decides with
them and `assign_layouts` applies the decision.

A rule exists for the ops that are *transparent*: elementwise ops, shape ops and constants. What
reads memory, combines elements or multiplies matrices is not: its layouts are fixed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import (
    broadcast_operand,
    broadcast_to,
    concat,
    drop_axis,
    join,
    split,
    splittable,
)
from tiledsl.dialects.types import bit_width, shape_of

_ELEMENTWISE = (
    tile.AddPtrOp,
    tile.HintOp,
    tile.FloorDivOp,
    tile.FloorModOp,
    tile.CastOp,
    tile.BitcastOp,
)
_LEAVES = (tile.MakeRangeOp, tile.SplatOp)
_EXPENSIVE = frozenset(
    ("arith.divf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.remf")
)


@cache
def _dialect(name: str) -> str:
    return name.partition(".")[0]


def is_elementwise(op: ir.OpView) -> bool:
    """Whether each element of the results depends on the same element of the operands alone."""
    return isinstance(op, _ELEMENTWISE) or (
        _dialect(op.operation.name) in ("arith", "math") and not is_leaf(op)
    )


def is_leaf(op: ir.OpView) -> bool:
    """Whether the result is made of scalars and numbers: any layout is as cheap as another."""
    return isinstance(op, _LEAVES) or op.operation.name == "arith.constant"


def is_transparent(op: ir.OpView) -> bool:
    """Whether layouts pass through the op, so that it may be computed anew in another layout."""
    return is_elementwise(op) or is_leaf(op) or type(op) in _BACKWARD


def work(op: ir.OpView) -> int:
    """Give what computing one element costs a thread, about in moves of a byte."""
    name = op.operation.name
    if _dialect(name) == "math" or name in _EXPENSIVE:
        return 8
    if isinstance(op, tile.FloorDivOp | tile.FloorModOp | tile.CastOp):
        return 4
    return 1 if is_elementwise(op) else 0


def tile_bytes(type_: ir.Type) -> int:
    """Give the bytes of a tile as it is moved between threads."""
    size = max(1, bit_width(type_) // 8)
    for extent in shape_of(type_):
        size *= extent
    return size


# Forward.


def forward(op: ir.OpView, operand: LinearLayout) -> LinearLayout:
    """Give the layout of every tile result of a transparent op whose tile operands have `operand`.

    `tile.reduce` and `tile.scan` have a forward rule too. Leaves have none.

    Raises:
        TypeError: The op has no forward rule.
    """
    rule = _FORWARD.get(type(op))
    if rule is not None:
        return rule(op, operand)
    if is_elementwise(op):
        return operand
    raise TypeError(f"expected an op that layouts pass through, found {op.operation.name}")


def _result_shape(op: ir.OpView) -> tuple[int, ...]:
    return shape_of(op.operation.results[0].type)


def _forward_expand(op: tile.ExpandDimsOp, layout: LinearLayout) -> LinearLayout:
    return layout.expand_dims(op.axis)


def _forward_broadcast(op: tile.BroadcastOp, layout: LinearLayout) -> LinearLayout:
    return broadcast_to(layout, _result_shape(op)).layout


def _forward_reshape(op: tile.ReshapeOp, layout: LinearLayout) -> LinearLayout:
    return layout.reshape(_result_shape(op))


def _forward_trans(op: tile.TransOp, layout: LinearLayout) -> LinearLayout:
    return layout.transpose(op.order)


def _forward_join(_: tile.JoinOp, layout: LinearLayout) -> LinearLayout:
    return join(layout).layout


def _forward_split(_: tile.SplitOp, layout: LinearLayout) -> LinearLayout:
    return split(splittable(layout)).layout


def _forward_cat(op: tile.CatOp, layout: LinearLayout) -> LinearLayout:
    return concat(layout, op.axis).layout


def _forward_reduce(op: tile.ReduceOp, layout: LinearLayout) -> LinearLayout:
    return drop_axis(layout, op.axis).layout


_FORWARD: dict[type, Callable[[Any, LinearLayout], LinearLayout]] = {
    tile.ExpandDimsOp: _forward_expand,
    tile.BroadcastOp: _forward_broadcast,
    tile.ReshapeOp: _forward_reshape,
    tile.TransOp: _forward_trans,
    tile.JoinOp: _forward_join,
    tile.SplitOp: _forward_split,
    tile.CatOp: _forward_cat,
    tile.ReduceOp: _forward_reduce,
    tile.ScanOp: lambda _, layout: layout,
}


# Backward.


def backward(op: ir.OpView, result: LinearLayout) -> LinearLayout | None:
    """Give the layout that all tile operands of a transparent op need for results in `result`.

    None where there is none: then the op must be computed in another layout, and converted.
    """
    rule = _BACKWARD.get(type(op))
    return result if rule is None else rule(op, result)


def _source_shape(op: ir.OpView) -> tuple[int, ...]:
    return shape_of(op.operation.operands[0].type)


def _back_expand(op: tile.ExpandDimsOp, result: LinearLayout) -> LinearLayout:
    return result.squeeze(op.axis)


def _back_broadcast(op: tile.BroadcastOp, result: LinearLayout) -> LinearLayout:
    return broadcast_operand(result, _source_shape(op)).layout


def _back_reshape(op: tile.ReshapeOp, result: LinearLayout) -> LinearLayout:
    return result.reshape(_source_shape(op))


def _back_trans(op: tile.TransOp, result: LinearLayout) -> LinearLayout:
    order: list[int] = op.order
    return result.transpose([order.index(axis) for axis in range(len(order))])


def _back_join(op: tile.JoinOp, result: LinearLayout) -> LinearLayout | None:
    return split(result).layout if splittable(result) == result else None


def _back_split(op: tile.SplitOp, result: LinearLayout) -> LinearLayout:
    return join(result).layout


def _back_cat(op: tile.CatOp, result: LinearLayout) -> LinearLayout | None:
    turned = _apart(result, op.axis)
    return split(turned).layout if splittable(turned) == turned else None


def _apart(layout: LinearLayout, axis: int) -> LinearLayout:
    """See the upper bit of an axis as a trailing dimension of 2, as `split` takes apart."""
    shape = layout.shape
    apart = layout.reshape((*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]))
    return apart.transpose([*(i for i in range(apart.rank) if i != axis), axis])


def _whole(layout: LinearLayout, axis: int) -> LinearLayout:
    """Undo `_apart`."""
    last = layout.rank - 1
    order = [*range(axis), last, *range(axis, last)]
    turned = layout.transpose(order)
    shape = turned.shape
    return turned.reshape((*shape[:axis], 2 * shape[axis + 1], *shape[axis + 2 :]))


_BACKWARD: dict[type, Callable[[Any, LinearLayout], LinearLayout | None]] = {
    tile.ExpandDimsOp: _back_expand,
    tile.BroadcastOp: _back_broadcast,
    tile.ReshapeOp: _back_reshape,
    tile.TransOp: _back_trans,
    tile.JoinOp: _back_join,
    tile.SplitOp: _back_split,
    tile.CatOp: _back_cat,
}


def nearest(op: ir.OpView, result: LinearLayout) -> LinearLayout:
    """Give the layout nearest to `result` that an op's results can have without moving data.

    It is `result` itself but for `tile.join` and `tile.cat`, which must have both halves of an
    element pair in one thread.
    """
    if backward(op, result) is not None:
        return result
    if isinstance(op, tile.JoinOp):
        return splittable(result)
    assert isinstance(op, tile.CatOp)
    return _whole(splittable(_apart(result, op.axis)), op.axis)
