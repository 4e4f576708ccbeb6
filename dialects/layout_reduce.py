"""How a reduction along one axis splits into registers, lanes and warps.

Dropping the axis from a layout leaves a linear map whose kernel says which places hold elements to
be combined. A basis of that kernel, less what only reaches copies, is the plan: its members in the
registers alone are combined in the thread, those that reach other lanes are butterflies (one
shuffle each), and those that reach other warps go through shared memory as an ordinary layout
conversion. Nothing is assumed of the layout: a swizzled or replicated one reduces just as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.dialects.layout_shape import drop_axis


@dataclass(frozen=True)
class LaneStep:
    """One butterfly: `v[r] = combine(v[r], shuffle_xor(v[r ^ register_mask], lane_mask))`.

    Both sides use the values from before the step.
    """

    register_mask: int
    lane_mask: int


@dataclass(frozen=True)
class CrossWarpStep:
    """The last step: convert `partial` to `gathered`, then combine `groups` of its registers.

    Both layouts have the shape (partials, *kept): every warp's partial result has its own place
    along the new first dimension. `groups[r]` are the registers of `gathered` whose combination is
    result register `r`.
    """

    partial: LinearLayout
    gathered: LinearLayout
    groups: IntArray


def over_lanes(gathered: LinearLayout) -> LinearLayout | None:
    """Return a `CrossWarpStep.gathered` with the partial results in lanes instead of registers.

    Lanes that would hold copies take one each, if there are enough of them: then 32 are combined by
    a read and five butterflies, where a thread that has them all reads and combines 32.
    """
    partials = gathered.shape[0].bit_length() - 1
    registers, lanes = list(gathered.flat("register")), list(gathered.flat("lane"))
    free = [i for i, column in enumerate(lanes) if column == 0]
    if len(free) < partials:
        return None
    for i, column in zip(free, registers[:partials], strict=False):
        lanes[i] = column
    dims = {name: list(gathered.flat(name)) for name in gathered.in_dims}
    return LinearLayout.from_flat(
        {**dims, "register": registers[partials:], "lane": lanes}, gathered.shape
    )


@dataclass(frozen=True, eq=False)
class ReductionPlan:
    """Steps of a reduction, in order: `register_groups`, `lane_steps`, `cross_warp`.

    Attributes:
        layout: The result's layout, the axis dropped.
        register_groups: For each result register, the operand registers to combine, in the order
            of the axis (on lane 0). Its shape is (result registers, elements combined).
        lane_steps: Butterflies on result registers; afterwards every lane of a group has the total.
        cross_warp: None if each warp already has everything.
    """

    layout: LinearLayout
    register_groups: IntArray
    lane_steps: tuple[LaneStep, ...]
    cross_warp: CrossWarpStep | None


@lru_cache(maxsize=1024)
def plan_reduction(layout: LinearLayout, axis: int) -> ReductionPlan:
    """Plan the reduction of a tile along `axis`; each element is combined exactly once.

    Raises:
        ValueError: The layout does not hold every element.
    """
    if not layout.is_surjective:
        raise ValueError(f"expected a layout that holds every element, found {layout}")
    axis %= layout.rank
    dropped = drop_axis(layout, axis)
    generators = _generators(layout, axis)
    registers, lanes = layout.bits("register"), layout.bits("lane")
    in_thread = [g for g in generators if g < 1 << registers]
    across_lanes = [g for g in generators[len(in_thread) :] if g < 1 << (registers + lanes)]
    across_warps = generators[len(in_thread) + len(across_lanes) :]
    kept = f2.spread(f2.independent(_without(layout, axis)[:registers]))
    return ReductionPlan(
        dropped.layout,
        _register_groups(layout, axis, dropped.source, in_thread),
        tuple(
            LaneStep(sum(1 << i for i, bit in enumerate(kept) if g >> bit & 1), g >> registers)
            for g in across_lanes
        ),
        _cross_warp(layout, axis, dropped.layout, generators, kept) if across_warps else None,
    )


def _axis_field(layout: LinearLayout, axis: int) -> int:
    return (layout.shape[axis] - 1) << layout.axis_shift(axis)


def _without(layout: LinearLayout, axis: int) -> list[int]:
    """Give all columns with the axis' bits cleared, in place."""
    field = _axis_field(layout, axis)
    return [column & ~field for column in layout.columns]


def _generators(layout: LinearLayout, axis: int) -> list[int]:
    """Give input masks whose span visits each element of a line along the axis once.

    They are ordered by their highest bit, hence registers, lanes, warps; below the highest bit
    there are only bits of places that represent distinct elements of the result.
    """
    span = f2.Span()
    return [
        mask
        for mask in f2.kernel(_without(layout, axis))
        if span.add(f2.apply(layout.columns, mask))  # else it only reaches copies
    ]


def _register_groups(
    layout: LinearLayout, axis: int, representatives: IntArray, in_thread: list[int]
) -> IntArray:
    groups = representatives[:, None] ^ f2.table(in_thread)[None, :]
    along = (layout.register_offsets >> layout.axis_shift(axis)) & (layout.shape[axis] - 1)
    groups = groups[[[i] for i in range(len(groups))], along[groups].argsort(axis=1)]
    groups.setflags(write=False)
    return groups


def _cross_warp(
    layout: LinearLayout,
    axis: int,
    result: LinearLayout,
    generators: list[int],
    kept: list[int],
) -> CrossWarpStep:
    """Number the partial results that different warps hold of one element of the result.

    The elements along the axis are sums of the generators' images; the coefficients of those that
    reach other warps are the number of the partial result.
    """
    inside = 1 << (layout.bits("register") + layout.bits("lane"))
    first = sum(g < inside for g in generators)
    span = f2.Span(f2.apply(layout.columns, g) for g in generators)
    field = _axis_field(layout, axis)

    def place(column: int, reduced: int) -> int:
        number = span.solve(column & field)
        assert number is not None  # a surjective layout's generators span the axis
        return (number >> first) << result.index_bits | reduced

    dims: dict[str, list[int]] = {}
    for name in layout.in_dims:
        columns = layout.flat(name)
        if name == "register":
            columns = tuple(columns[i] for i in kept)
        dims[name] = [place(c, r) for c, r in zip(columns, result.flat(name), strict=True)]
    across = len(generators) - first
    shape = (1 << across, *result.shape)
    partials = [1 << (result.index_bits + i) for i in range(across)]
    gathered = {name: list(result.flat(name)) for name in result.in_dims}
    gathered["register"] = partials + gathered["register"]
    groups = f2.table([1 << i for i in range(across + result.bits("register"))])
    return CrossWarpStep(
        LinearLayout.from_flat(dims, shape),
        LinearLayout.from_flat(gathered, shape),
        groups.reshape(result.registers, 1 << across),
    )
