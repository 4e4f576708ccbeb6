"""Reductions within a warp: a tree over each thread's registers, then butterflies between lanes.

`plan_reduction` says which registers and lanes hold what is to be combined. After a butterfly both
lanes hold the same, bit by bit: a well-known kind is commutative in its bits, and another function
gets its arguments in the order of the axis in both lanes. So the result is the same in every thread
that holds it.

A maximum of floats that is NaN if one of them is takes three instructions each where a chip has
none for it. A thread's own registers then give the maximum of what is not NaN, and apart from that
whether something is: two at a time are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.dialects.layout_reduce import LaneStep, ReductionPlan, plan_reduction
from tiledsl.dialects.types import is_tile
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.combine import Combine, Values
from tiledsl.targets.gpu.lowering import Handler, Lowering
from tiledsl.targets.gpu.place import Place
from tiledsl.targets.gpu.shape import registers_between
from tiledsl.targets.gpu.shuffle import shuffle_xor
from tiledsl.transforms.ordered import is_ordered

Combining = Callable[[Values, Values], Values]
"""What combines vectors with vectors, one for each source."""


def _reduce(lowering: Lowering, op: tile.ReduceOp) -> None:
    plan = _plan(lowering, op)
    if plan.cross_warp is not None:
        raise CompilerBug(f"expected a reduction within a warp, found {op}")
    for result, value in zip(op.results_, _within_warp(lowering, op, plan), strict=True):
        if not is_tile(result.type):
            lowering.define(result, emit.extract(value, 0))
            continue
        order = registers_between(plan.layout, lowering.layout(result), op)
        lowering.define(result, emit.shuffle(value, order))


def _partial_reduce(lowering: Lowering, op: tgpu.PartialReduceOp) -> None:
    plan = _plan(lowering, op)
    if plan.cross_warp is None:
        raise CompilerBug(f"expected a reduction across warps, found {op}")
    for result, value in zip(op.results_, _within_warp(lowering, op, plan), strict=True):
        order = registers_between(plan.cross_warp.partial, lowering.layout(result), op)
        lowering.define(result, emit.shuffle(value, order))


def _plan(lowering: Lowering, op: Any) -> ReductionPlan:
    layout = lowering.layout(op.sources[0])
    if not op.kind and not is_ordered(layout, op.axis):
        raise CompilerBug(f"expected a layout ordered along axis {op.axis} in {op}")
    return plan_reduction(layout, op.axis)


def _within_warp(lowering: Lowering, op: Any, plan: ReductionPlan) -> Values:
    """Return each source's reduction over registers and lanes, in the result's registers."""
    combine = Combine(lowering, op.combine)
    values = [lowering.value(source) for source in op.sources]
    plain = _ignoring_nan(combine.single)
    at_once = lowering.machine.extremes_at_once
    if plain is not None and not lowering.machine.keeps_nan(emit.scalar_of(values[0].type)):
        values = [_extremes(plain, values[0], plan.register_groups, at_once)]
    elif at_once == 3 and combine.single in _EXTREMES:
        values = _in_chains(combine, values, plan.register_groups)
    else:
        values = combine_groups(combine, values, plan.register_groups, ordered=not op.kind)
    for step in plan.lane_steps:
        values = _butterfly(lowering.place, combine, values, step, ordered=not op.kind)
    return values


def _ignoring_nan(name: str | None) -> Callable[..., ir.Value] | None:
    """Give the counterpart of a maximum or minimum that takes the operand that is not NaN."""
    return {"arith.maximumf": arith.maxnumf, "arith.minimumf": arith.minnumf}.get(name or "")


_EXTREMES = frozenset(
    f"arith.{kind}{type_}" for kind in ("max", "min") for type_ in ("imumf", "numf", "si", "ui")
)


def _extremes(
    plain: Callable[..., ir.Value], value: ir.Value, groups: IntArray, at_once: int
) -> ir.Value:
    """Return register i as the extreme of the registers `groups[i]`, NaN if one of them is."""

    def extremes(values: Values, others: Values) -> Values:
        return [plain(a, b) for a, b in zip(values, others, strict=True)]

    def either(values: Values, others: Values) -> Values:
        return [arith.ori(a, b) for a, b in zip(values, others, strict=True)]

    count, width = groups.shape
    if width < 2:
        return emit.shuffle(value, groups[:, 0])
    if at_once == 3:
        (most,) = _in_chains(extremes, [value], groups)
    else:
        (most,) = combine_groups(extremes, [value], groups, ordered=False)
    half = width // 2
    left, right = (emit.shuffle(value, g.ravel()) for g in (groups[:, :half], groups[:, half:]))
    unordered = arith.cmpf(arith.CmpFPredicate.UNO, left, right)
    pairs = np.arange(count * half, dtype=np.int64).reshape(count, half)
    (found,) = combine_groups(either, [unordered], pairs, ordered=False)
    return arith.select(found, emit.constant(most.type, math.nan), most)


def _in_chains(combine: Combining, values: Values, groups: IntArray) -> Values:
    """Return register i as the combination of the registers `groups[i]`, in any order.

    In two chains, of whose links LLVM makes two an instruction that combines three.
    """
    count, width = groups.shape
    chains = min(2, width)
    first, *others = (groups[:, i : i + chains].ravel() for i in range(0, width, chains))
    made = [emit.shuffle(value, first) for value in values]
    for other in others:
        made = combine(made, [emit.shuffle(value, other) for value in values])
    ends = np.arange(count * chains, dtype=np.int64).reshape(count, chains)
    return combine_groups(combine, made, ends, ordered=False)


def combine_groups(
    combine: Combining, values: Values, groups: IntArray, *, ordered: bool
) -> Values:
    """Return register i as the combination of the registers `groups[i]`.

    One op a level of the tree: all left halves in one vector, all right halves in another. In order
    neighbors combine; otherwise registers far apart do, which leaves two halves in a word together.
    """
    count, width = groups.shape
    places: IntArray = groups
    while width > 1:
        width //= 2
        if ordered:
            left, right = places[:, 0::2], places[:, 1::2]
        else:
            left, right = places[:, :width], places[:, width:]
        values = combine(
            [emit.shuffle(value, left.ravel()) for value in values],
            [emit.shuffle(value, right.ravel()) for value in values],
        )
        places = np.arange(count * width, dtype=np.int64).reshape(count, width)
    return [emit.shuffle(value, places[:, 0]) for value in values]


def _butterfly(
    place: Place, combine: Combine, values: Values, step: LaneStep, *, ordered: bool
) -> Values:
    registers = range(emit.registers_of(values[0]))
    other = [
        shuffle_xor(
            place, emit.shuffle(v, [r ^ step.register_mask for r in registers]), step.lane_mask
        )
        for v in values
    ]
    if not ordered:
        return combine(values, other)
    # The lane whose bit is clear holds the earlier part of the axis.
    earlier = place.is_clear(step.lane_mask)
    assert earlier is not None  # a step has a mask
    firsts = [emit.select(earlier, a, b) for a, b in zip(values, other, strict=True)]
    seconds = [emit.select(earlier, b, a) for a, b in zip(values, other, strict=True)]
    return combine(firsts, seconds)


HANDLERS: dict[str, Handler] = {
    "tile.reduce": _reduce,
    "tgpu.partial_reduce": _partial_reduce,
}
