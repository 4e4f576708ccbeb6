"""The cheapest way to bring a tile from one register layout to another.

Both layouts are linear maps over F2, so where each element has to come from is linear too, and what
the conversion needs can be read off the matrix: nothing, a permutation of each thread's registers,
shuffles between the lanes of a warp, or a trip through shared memory. Copies count on both sides:
an element that the source holds several times comes from the nearest holder, and copies that the
result wants are made after everything else.

Shuffles work in three steps, each linear. A sending lane picks, for every value, a register that
depends on its lane number; the value goes to the lanes that ask for it; a receiving lane puts it
into a register that depends on its own lane number. Given the map (register, lane) -> (source
register, source lane) the third step is chosen so that no lane is asked for two registers at once.

Costs, in issue slots of one warp, are rough on purpose: a shuffle of 32 bits is 2 (it asks the
banks once and issues once), a select of 32 bits 1/2, a word stored to or loaded from shared memory
5/4 (with vectors of four); waiting for the store is 24 (barriers before and after, a buffer that
lives until then), or 8 if a warp only waits for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.dialects.layout_shape import distinct_registers, register_map
from tiledsl.transforms.shared_access import NVIDIA, SharedMemory
from tiledsl.transforms.swizzle import SharedChoice, choose_shared_layout


@dataclass(frozen=True)
class NoConversion:
    """Every thread already holds what it needs, register by register."""


@dataclass(frozen=True, eq=False)
class RegisterPermutation:
    """Every thread holds what it needs: result register r is source register `source[r]`."""

    source: IntArray


@dataclass(frozen=True)
class Round:
    """Values that travel between the same lanes: lane l asks lane `lane_offset ^ lanes(l)`."""

    lane_offset: int
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LaneShuffle:
    """Shuffles within each warp.

    With `m(l)` for the xor of those masks of matrix m whose bit is set in lane number l:

        sent[v] of lane l = source register  bases[v] ^ pick(l)
        got[v] of lane l  = sent[v] of lane  round.lane_offset ^ lanes(l)    for v in round.values
        result r of lane l = got[value[distinct[r] ^ place(l)]]

    Values of one round can share a shuffle, as many as fit 32 bits.

    Attributes:
        pick: Register masks, one for each lane bit.
        lanes: Lane masks, one for each lane bit.
        place: Masks over distinct result registers, one for each lane bit.
        bases: First source register of each value.
        rounds: Which values travel how.
        value: The value that becomes each distinct result register, in a lane where `place` is 0.
        distinct: For each result register the distinct one that it is a copy of.
    """

    pick: tuple[int, ...]
    lanes: tuple[int, ...]
    place: tuple[int, ...]
    bases: IntArray
    rounds: tuple[Round, ...]
    value: IntArray
    distinct: IntArray

    def moves(self, one: Round) -> bool:
        """Whether a round leaves the lane at all."""
        return one.lane_offset != 0 or self.lanes != tuple(1 << i for i in range(len(self.lanes)))

    @property
    def is_butterfly(self) -> bool:
        """Whether every round is an xor with a constant: lane l asks lane l ^ lane_offset."""
        return self.lanes == tuple(1 << i for i in range(len(self.lanes)))

    def shuffles(self, element_bits: int) -> int:
        """Give the number of 32-bit shuffles."""
        return sum(
            -(-len(one.values) * element_bits // 32) for one in self.rounds if self.moves(one)
        )

    def cost(self, element_bits: int) -> float:
        """Give the cost as the module says."""
        selects = f2.rank(self.pick) * len(self.bases) + f2.rank(self.place) * len(self.value)
        # Every value picks and places by the same masks, so packed words can be selected whole.
        return 2 * self.shuffles(element_bits) + selects * element_bits / 32 / 2

    def picked(self) -> IntArray:
        """Source register of each value in each sending lane, [value, lane]."""
        return self.bases[:, None] ^ f2.table(self.pick)[None, :]

    def asked(self) -> IntArray:
        """Lane that each lane asks in each round, [round, lane]."""
        offsets = np.array([one.lane_offset for one in self.rounds], dtype=np.int64)
        return offsets[:, None] ^ f2.table(self.lanes)[None, :]

    def placed(self) -> IntArray:
        """Value that each lane's result registers get, [register, lane]."""
        return self.value[self.distinct[:, None] ^ f2.table(self.place)[None, :]]


@dataclass(frozen=True, eq=False)
class ThroughShared:
    """A trip through shared memory: store by `choice.accesses[0]`, load by `choice.accesses[1]`.

    `source` and `result` are the layouts without registers that copy others: the store takes
    registers `stored` of the source, and result register r is loaded register `copied[r]`. Lanes
    and warps with a bit of `source.free_masks()` set do not store. With `within_warp` each warp
    loads only what it stored itself, so a barrier of the warp does.
    """

    source: LinearLayout
    result: LinearLayout
    stored: IntArray
    copied: IntArray
    choice: SharedChoice
    within_warp: bool


ConversionPlan = NoConversion | RegisterPermutation | LaneShuffle | ThroughShared


@lru_cache(maxsize=2048)
def plan_conversion(
    source: LinearLayout,
    result: LinearLayout,
    element_bits: int = 32,
    *,
    memory: SharedMemory = NVIDIA,
    matrix_loads: bool = False,
    matrix_stores: bool = False,
) -> ConversionPlan:
    """Plan the conversion of a tile from layout `source` to layout `result`.

    Args:
        source: Where the tile is.
        result: Where it is wanted.
        element_bits: Width of an element, 8 to 64.
        memory: The chip's banks.
        matrix_loads: Whether the chip has `ldmatrix`.
        matrix_stores: Whether the chip has `stmatrix`.

    Raises:
        ValueError: The layouts differ in shape, lanes, warps or blocks, or the source does not hold
            an element that the result wants.
    """
    _check(source, result)
    registers = register_map(source, result)
    if registers is not None:
        identity = np.arange(source.registers)
        if len(registers) == source.registers and np.array_equal(registers, identity):
            return NoConversion()
        return RegisterPermutation(registers)
    shuffle = _plan_shuffle(source, result, element_bits)
    within_warp = _within_warp(source, result)
    if shuffle and shuffle.cost(element_bits) <= _shared_cost(
        source, result, element_bits, within_warp
    ):
        return shuffle
    stored, loaded = distinct_registers(source), distinct_registers(result)
    choice = choose_shared_layout(
        source.shape,
        element_bits,
        stored.layout,
        [loaded.layout],
        memory=memory,
        matrix_loads=matrix_loads,
        matrix_stores=matrix_stores,
    )
    copied = register_map(loaded.layout, result)
    assert copied is not None  # only copies were dropped
    return ThroughShared(stored.layout, loaded.layout, stored.source, copied, choice, within_warp)


def _check(source: LinearLayout, result: LinearLayout) -> None:
    if source.shape != result.shape:
        raise ValueError(f"expected equal shapes, found {source.shape} and {result.shape}")
    if (source.lanes, source.warps) != (result.lanes, result.warps):
        raise ValueError(f"expected as many lanes and warps in {source} as in {result}")
    if source.flat("block") != result.flat("block"):
        raise ValueError(f"expected the same blocks to hold the tile in {source} and {result}")
    span = f2.Span(source.columns)
    if not all(column in span for column in result.columns):
        raise ValueError(f"expected a source that holds every element, found {source}")


def _shared_cost(
    source: LinearLayout, result: LinearLayout, element_bits: int, within_warp: bool
) -> float:
    """Give the cost of a trip through shared memory at its best."""
    held = sum(distinct_registers(layout).layout.registers for layout in (source, result))
    return held * element_bits / 32 * 5 / 4 + (8 if within_warp else 24)


def _within_warp(source: LinearLayout, result: LinearLayout) -> bool:
    """Whether each warp itself stores all it loads."""
    span = f2.Span([*source.flat("register"), *source.flat("lane")])
    inside = all(column in span for column in (*result.flat("register"), *result.flat("lane")))
    same_warps = source.flat("warp") == result.flat("warp")
    return inside and same_warps and not source.free_masks()["warp"]


# Shuffles.


@dataclass(frozen=True)
class _Origin:
    """Where elements come from: (register, lane) -> (source register, source lane), by columns."""

    register_from_register: list[int]
    lane_from_register: list[int]
    register_from_lane: list[int]
    lane_from_lane: list[int]


def _plan_shuffle(
    source: LinearLayout, result: LinearLayout, element_bits: int
) -> LaneShuffle | None:
    """Plan shuffles, None if an element comes from another warp or a lane is asked for too much."""
    wanted = distinct_registers(result).layout
    origin = _origin(source, wanted)
    if origin is None:
        return None
    copied = register_map(wanted, result)
    assert copied is not None  # only copies were dropped
    placements = (_placement(origin), _butterfly_placement(origin))
    plans = [_placed_by(origin, place, copied) for place in placements if place is not None]
    return min(plans, key=lambda plan: plan.cost(element_bits), default=None)


def _placed_by(origin: _Origin, place: list[int], copied: IntArray) -> LaneShuffle:
    """Plan what follows from the choice of the register that each lane receives first."""
    lanes = [
        own ^ f2.apply(origin.lane_from_register, p)
        for own, p in zip(origin.lane_from_lane, place, strict=True)
    ]
    needs = [
        own ^ f2.apply(origin.register_from_register, p)
        for own, p in zip(origin.register_from_lane, place, strict=True)
    ]
    pick = _through(lanes, needs)
    values: dict[tuple[int, int], int] = {}  # (lane offset, first register) -> number
    value: list[int] = []
    offsets = f2.table(origin.lane_from_register).tolist()
    bases = f2.table(origin.register_from_register).tolist()
    for base, offset in zip(bases, offsets, strict=True):
        key = offset, base ^ f2.apply(pick, offset)
        value.append(values.setdefault(key, len(values)))
    rounds: dict[int, list[int]] = {}
    for (offset, _), number in values.items():
        rounds.setdefault(offset, []).append(number)
    return LaneShuffle(
        tuple(pick),
        tuple(lanes),
        tuple(place),
        np.array([base for _, base in values], dtype=np.int64),
        tuple(Round(offset, tuple(some)) for offset, some in rounds.items()),
        np.array(value, dtype=np.int64),
        copied,
    )


def _origin(source: LinearLayout, result: LinearLayout) -> _Origin | None:
    """Solve for the source place of each bit of the result, staying in the lane where possible."""
    if source.flat("warp") != result.flat("warp"):
        return None
    registers = source.flat("register")
    near = f2.Span(registers)
    far = f2.Span([*registers, *source.flat("lane")])
    size = source.registers

    def split(mask: int | None) -> tuple[int, int] | None:
        return None if mask is None else (mask & (size - 1), mask >> len(registers))

    from_register: list[tuple[int, int]] = []
    for column in result.flat("register"):
        found = split(far.solve(column))
        if found is None:
            return None
        from_register.append(found)
    from_lane: list[tuple[int, int]] = []
    for i, (column, own) in enumerate(zip(result.flat("lane"), source.flat("lane"), strict=True)):
        stay = near.solve(column ^ own)
        found = (stay, 1 << i) if stay is not None else split(far.solve(column))
        if found is None:
            return None
        from_lane.append(found)
    return _Origin(
        [register for register, _ in from_register],
        [lane for _, lane in from_register],
        [register for register, _ in from_lane],
        [lane for _, lane in from_lane],
    )


def _placement(origin: _Origin) -> list[int] | None:
    """Choose which result register each lane receives first, as a mask for each lane bit.

    Lanes that would ask one lane for different registers are given different result registers to
    receive, chosen so that they ask different lanes. None if there are too few lanes to ask.
    """
    count = len(origin.lane_from_lane)
    kernel = f2.kernel(origin.lane_from_lane)
    needs = [f2.apply(origin.register_from_lane, mask) for mask in kernel]
    clashing = [kernel[i] for i in f2.spread(f2.independent(needs))]
    harmless = [f2.apply(kernel, mask) for mask in f2.kernel(needs)]
    reached = f2.Span(origin.lane_from_lane)
    apart = [1 << i for i, lane in enumerate(origin.lane_from_register) if reached.add(lane)]
    if len(apart) < len(clashing):
        return None
    # Masks of lanes that keep their place complete the clashing ones to a basis.
    basis = f2.Span([*clashing, *harmless, *(1 << i for i in range(count))])
    place: list[int] = []
    for i in range(count):
        mask = basis.solve(1 << i)
        assert mask is not None  # the units are in the basis
        place.append(f2.apply(apart[: len(clashing)], mask & ((1 << len(clashing)) - 1)))
    return place


def _butterfly_placement(origin: _Origin) -> list[int] | None:
    """Choose result registers such that lane l asks lane l ^ constant; None if that cannot be.

    What a lane has itself then stays there, even if all lanes want it: half as much travels where
    the halves of a warp each hold half of what both want.
    """
    reached = f2.Span(origin.lane_from_register)
    place = [reached.solve(own ^ 1 << i) for i, own in enumerate(origin.lane_from_lane)]
    found = [mask for mask in place if mask is not None]
    return found if len(found) == len(place) else None


def _through(lanes: list[int], needs: list[int]) -> list[int]:
    """Factor `needs` through `lanes`: give F with F(lanes(l)) = needs(l)."""
    count = len(lanes)
    basis = f2.Span([*lanes, *(1 << i for i in range(count))])
    result: list[int] = []
    for i in range(count):
        mask = basis.solve(1 << i)
        assert mask is not None  # the units are in the basis
        result.append(f2.apply(needs, mask & ((1 << count) - 1)))
    return result
