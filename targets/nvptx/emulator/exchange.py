"""Exchange between the lanes of a warp: shuffles, votes, matches, reductions, elections.

All `.sync` forms name in a membermask the lanes that must come to the instruction; `convergence`
lets the first wait for the others. Reading a lane that did not come, or being none of those named,
is undefined on hardware, and a finding here (the lane then reads its own or what is there).

Source: PTX ISA 9.7.9, shfl.sync; 9.7.13, vote.sync, match.sync, redux.sync, activemask, elect.sync,
bar.warp.sync.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.convergence import collective
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context, Reader
from tiledsl.targets.nvptx.emulator.warps import Outputs, Warps

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Array = NDArray[Any]
_EVERY = 0xFFFFFFFF
_LANE = np.arange(WARP_SIZE)
_BIT = np.uint32(1) << _LANE.astype(np.uint32)


# --- who takes part ------------------------------------------------------------------------------


class Members:
    """The membermask of one instruction.

    Attributes:
        reader: What reads it; None where it is the constant that names the whole warp.
    """

    def __init__(self, context: Context, operand: ptx.Operand) -> None:
        self._instruction = context.instruction
        self.whole = isinstance(operand, ptx.Immediate) and operand.value & _EVERY == _EVERY
        self.read = context.read(operand, "b32")
        self.reader: Reader | None = None if self.whole else self.read

    def named(self, warps: Warps) -> Array:
        """Return which lanes take part with each lane: (warps, 32, 32), or (warps, 1, 32).

        A lane takes part where it is named and has come.
        """
        active = warps.machine.active.reshape(-1, WARP_SIZE)[warps.index]
        if self.whole:
            return active[:, None]
        masks = warps.rows(self.read(warps.machine))
        named = (masks[:, :, None] & _BIT) != 0
        self._check(warps, named, active)
        return named & active[:, None]

    def _check(self, warps: Warps, named: Array, active: Array) -> None:
        outside = active & ~named[:, _LANE, _LANE]
        if outside.any():
            report(
                warps,
                self._instruction,
                outside,
                lambda lane: f"lane {lane} is not in its own mask",
            )


def report(
    warps: Warps, instruction: Instruction, bad: Array, message: Callable[[int], str]
) -> None:
    """File a finding for lanes, (warps, 32), of undefined behaviour."""
    access = warps.machine.access(instruction, warps.threads.reshape(-1))
    access.report(Kind.UNDEFINED, bad.reshape(-1), lambda at: message(at % WARP_SIZE))


def bits_of(lanes: Array) -> NDArray[np.uint32]:
    """Pack lanes, (..., 32) bool, into masks: lane 0 lowest."""
    packed = np.packbits(lanes, axis=-1, bitorder="little")
    return packed.view(np.uint32)[..., 0]


# --- shfl ----------------------------------------------------------------------------------------

_MODES: Mapping[str, Callable[[Array, Array, Array, Array], tuple[Array, Array]]] = {
    "up": lambda lane, by, low, high: (lane - by, lane - by >= high),
    "down": lambda lane, by, low, high: (lane + by, lane + by <= high),
    "bfly": lambda lane, by, low, high: (lane ^ by, (lane ^ by) <= high),
    "idx": lambda lane, by, low, high: (low | by, (low | by) <= high),
}


def sources(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Return the lane that each lane reads, and whether that was in range, by PTX's formula."""
    clamp, segment = c & 31, c >> 8 & 31
    high = lane & segment | clamp & ~segment
    low = lane & segment
    by = b & 31
    source, valid = _MODES[mode](lane, by & ~segment if mode == "idx" else by, low, high)
    return np.where(valid, source, lane), valid


def _decode_shuffle(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("sync")
    mode = options.choice(_MODES)
    options.last({"b32"})
    options.done()
    target, a, b, c, mask = instruction.operands
    first, second = _results(target)
    value = context.read(a, "b32")
    shift, clamp = context.read(b, "b32"), context.read(c, "b32")
    members = Members(context, mask)
    output = Outputs(context, first, "b32")
    flag = None if second is None else Outputs(context, second, "pred")
    constant = isinstance(b, ptx.Immediate) and isinstance(c, ptx.Immediate)
    here = context.instruction

    def lanes_read(warps: Warps) -> tuple[Array, Array]:
        by, limit = shift(warps.machine), clamp(warps.machine)
        if constant:
            return sources(mode, _LANE, np.array(by, np.int64), np.array(limit, np.int64))
        by, limit = warps.rows(by).astype(np.int64), warps.rows(limit).astype(np.int64)
        return sources(mode, np.broadcast_to(_LANE, by.shape), by, limit)

    def step(machine: Machine) -> None:
        warps = Warps(machine)
        source, valid = lanes_read(warps)
        rows = warps.rows(value(machine))
        if source.ndim == 1:
            moved = rows.take(source, axis=1)
        else:
            moved = np.take_along_axis(rows, source, axis=1)
        if not (warps.every and members.whole):
            _check_sources(warps, members, source, here)
        if flag is not None:
            flag.put(warps, np.broadcast_to(valid, rows.shape)[None])
        output.put(warps, moved[None])

    return collective(step, members.reader)


def _check_sources(warps: Warps, members: Members, source: Array, here: Instruction) -> None:
    """Report lanes that read one that is not there."""
    there = np.broadcast_to(members.named(warps), (len(warps), WARP_SIZE, WARP_SIZE))
    source = np.broadcast_to(source, (len(warps), WARP_SIZE))
    active = warps.machine.active.reshape(-1, WARP_SIZE)[warps.index]
    lost = active & ~np.take_along_axis(there, source[..., None], axis=2)[..., 0]
    if lost.any():
        report(warps, here, lost, lambda lane: f"lane {lane} reads a lane that does not take part")


def _results(operand: ptx.Operand) -> tuple[ptx.Operand, ptx.Operand | None]:
    if isinstance(operand, ptx.Pair):
        return operand.first, operand.second
    return operand, None


# --- vote ----------------------------------------------------------------------------------------

_VOTES: Mapping[str, Callable[[Array, Array], Array]] = {
    "all": lambda ballot, here: ballot == here,
    "any": lambda ballot, here: ballot != 0,
    "uni": lambda ballot, here: (ballot == here) | (ballot == 0),
    "ballot": lambda ballot, here: ballot,
}


def _decode_vote(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("sync")
    mode = options.choice(_VOTES)
    type_ = options.last({"b32"} if mode == "ballot" else {"pred"})
    options.done()
    target, source, mask = instruction.operands
    value = context.read(source, "pred")
    members = Members(context, mask)
    output = Outputs(context, target, type_)
    function = _VOTES[mode]

    def step(machine: Machine) -> None:
        warps = Warps(machine)
        named = members.named(warps)
        here = bits_of(named)
        ballot = here & bits_of(warps.rows(value(machine)))[:, None]
        result = np.broadcast_to(function(ballot, here), (len(warps), WARP_SIZE))
        output.put(warps, result[None])

    return collective(step, members.reader)


def _decode_active_mask(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.last({"b32"})
    options.done()
    (target,) = instruction.operands
    return context.compute(target, "b32", np.array, [(ptx.Special("%activemask"), "b32")])


# --- match, redux, elect -------------------------------------------------------------------------


def _decode_match(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("sync")
    every = options.choice({"any", "all"}) == "all"
    type_ = options.last({"b32", "b64"})
    options.done()
    target, source, mask = instruction.operands
    first, second = _results(target)
    value = context.read(source, type_)
    members = Members(context, mask)
    output = Outputs(context, first, "b32")
    flag = None if second is None else Outputs(context, second, "pred")

    def step(machine: Machine) -> None:
        warps = Warps(machine)
        named = np.broadcast_to(members.named(warps), (len(warps), WARP_SIZE, WARP_SIZE))
        rows = warps.rows(value(machine))
        alike = bits_of(named & (rows[:, :, None] == rows[:, None]))
        same = alike == bits_of(named)
        if flag is not None:
            flag.put(warps, same[None])
        output.put(warps, (np.where(same, alike, np.uint32(0)) if every else alike)[None])

    return collective(step, members.reader)


_REDUCTIONS: Mapping[tuple[str, str], tuple[Any, int]] = {
    ("add", "u32"): (np.add, 0),
    ("add", "s32"): (np.add, 0),
    ("min", "u32"): (np.minimum, _EVERY),
    ("max", "u32"): (np.maximum, 0),
    ("min", "s32"): (np.minimum, 0x7FFFFFFF),
    ("max", "s32"): (np.maximum, -0x80000000),
    ("and", "b32"): (np.bitwise_and, _EVERY),
    ("or", "b32"): (np.bitwise_or, 0),
    ("xor", "b32"): (np.bitwise_xor, 0),
}
"""Of each operation and type: the function of two, and its neutral element."""


def _decode_reduction(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("sync")
    operation = options.choice({"add", "min", "max", "and", "or", "xor"})
    type_ = options.last({"u32", "s32", "b32", "f32"})
    absolute, nan = options.flag("abs"), options.flag("NaN")
    options.done()
    if type_ == "f32" and operation in ("min", "max"):
        reduce = _float_reduction(operation, absolute, nan)
    elif (operation, type_) in _REDUCTIONS and not (absolute or nan):
        function, neutral = _REDUCTIONS[operation, type_]
        reduce = _integer_reduction(function, neutral)
    else:
        raise unknown(instruction)
    target, source, mask = instruction.operands
    value = context.read(source, type_)
    members = Members(context, mask)
    output = Outputs(context, target, type_)

    def step(machine: Machine) -> None:
        warps = Warps(machine)
        reduced = reduce(warps.rows(value(machine))[:, None], members.named(warps))
        output.put(warps, np.broadcast_to(reduced, (len(warps), WARP_SIZE))[None])

    return collective(step, members.reader)


def _integer_reduction(function: Any, neutral: int) -> Callable[[Array, Array], Array]:
    def reduce(values: Array, named: Array) -> Array:
        taken = np.where(named, values, values.dtype.type(neutral))
        return function.reduce(taken, axis=-1, dtype=values.dtype)

    return reduce


def _float_reduction(operation: str, absolute: bool, nan: bool) -> Callable[[Array, Array], Array]:
    """Give the least or largest f32; +0 counts as more than -0."""
    sign = 1 if operation == "max" else -1

    def reduce(values: Array, named: Array) -> Array:
        values = np.abs(values) if absolute else values
        bits = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
        order = np.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits) * sign  # as floats are ordered
        lost = np.isnan(values)
        order = np.where(named & ~lost, order, -(1 << 40)).max(-1)
        none = order == -(1 << 40)
        if nan:
            none |= (named & lost).any(-1)
        best: Array = order * sign
        magnitude = np.where(best < 0, -1 - best, best)
        found = magnitude | np.where(best < 0, 0x80000000, 0)
        return np.where(none, 0x7FFFFFFF, found).astype(np.uint32).view(np.float32)

    return reduce


def _decode_elect(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("sync")
    options.done()
    target, mask = instruction.operands
    first, second = _results(target)
    members = Members(context, mask)
    leader = Outputs(context, first, "b32")
    flag = None if second is None else Outputs(context, second, "pred")

    def step(machine: Machine) -> None:
        warps = Warps(machine)
        named = np.broadcast_to(members.named(warps), (len(warps), WARP_SIZE, WARP_SIZE))
        lowest = named.argmax(-1)
        leader.put(warps, lowest.astype(np.uint32)[None])
        if flag is not None:
            flag.put(warps, (lowest == _LANE)[None])

    return collective(step, members.reader)


def _decode_warp_barrier(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.flag("warp")
    options.flag("sync")
    options.done()
    (mask,) = instruction.operands
    members = Members(context, mask)

    def step(machine: Machine) -> None:
        if not members.whole:
            members.named(Warps(machine))  # which checks the mask

    return collective(step, members.reader)


TABLE: Table = {
    "shfl.sync": Opcode(_decode_shuffle, InstructionClass.EXCHANGE),
    "vote.sync": Opcode(_decode_vote, InstructionClass.EXCHANGE),
    "activemask": Opcode(_decode_active_mask, InstructionClass.EXCHANGE),
    "match.any.sync": Opcode(_decode_match, InstructionClass.EXCHANGE),
    "match.all.sync": Opcode(_decode_match, InstructionClass.EXCHANGE),
    "redux.sync": Opcode(_decode_reduction, InstructionClass.EXCHANGE),
    "elect.sync": Opcode(_decode_elect, InstructionClass.EXCHANGE),
    "bar.warp.sync": Opcode(_decode_warp_barrier, InstructionClass.SYNCHRONIZE),
}
