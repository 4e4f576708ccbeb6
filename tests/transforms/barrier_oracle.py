"""A slow check of barriers: run a kernel every way that it can go and look at every two accesses.

Conditions and trip counts are taken as free choices. Along one run, two accesses of shared memory
race if they touch one slot's bytes, one writes, no barrier stands between, and they do not go by one
layout (which gives each element to one thread).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.types import held_by, layout_name, shape_of
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.rewrite import terminator
from tiledsl.transforms.shared_uses import buffer_bytes

MOST_TRIPS = 2
PIPELINE_TRIPS = 7
MOST_RUNS = 600


@dataclass(frozen=True)
class Event:
    """An access, or a barrier."""

    op: ir.Operation
    is_barrier: bool
    start: int = 0
    end: int = 0
    writes: bool = False
    layout: str = ""

    def races(self, later: Event) -> bool:
        overlap = self.start < later.end and later.start < self.end
        same_thread = (self.start, self.layout) == (later.start, later.layout)
        return overlap and (self.writes or later.writes) and not same_thread


@dataclass
class Run:
    """One run: `choices` decides what is free, beginning to end, 0 where it is too short."""

    choices: list[int]
    limits: list[int] = field(default_factory=list[int])
    values: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])
    events: list[Event] = field(default_factory=list[Event])
    buffers: dict[ir.Value, tuple[int, int]] = field(
        default_factory=dict[ir.Value, tuple[int, int]]
    )

    def choose(self, limit: int) -> int:
        at = len(self.limits)
        self.limits.append(limit)
        return self.choices[at] if at < len(self.choices) else 0


Step = Callable[[Run], None]


def steps(block: ir.Block) -> list[Step]:
    """Read a block once, into functions that run its ops."""
    return [step for op in block.operations if (step := _step(op)) is not None]


def _all(some: Sequence[Step], run: Run) -> None:
    for step in some:
        step(run)


def _step(op: ir.OpView) -> Step | None:
    match op:
        case tgpu.AllocOp():
            return _alloc(op)
        case tgpu.SlotOp():
            return _slot(op.buffer, op.index, op.slot)
        case tgpu.LocalStoreOp() | tgpu.LocalLoadOp():
            return _access(op.operation, op.buffer, op.tile.type)
        case tgpu.BarrierOp():
            event = Event(op.operation, True)
            return lambda run: run.events.append(event)
        case _:
            return _upstream(op.operation)


def _alloc(op: tgpu.AllocOp) -> Step:
    buffer, size, offset = op.buffer, buffer_bytes(op.buffer.type), op.offset

    def step(run: Run) -> None:
        start = offset if offset is not None else 1 << (20 + len(run.buffers))
        run.buffers[buffer] = start, start + size

    return step


def _slot(buffer: ir.Value, index: ir.Value, slot: ir.Value) -> Step:
    slots = shape_of(held_by(buffer.type))[0]

    def step(run: Run) -> None:
        start, end = run.buffers[buffer]
        size = (end - start) // slots
        start += run.values[index] * size
        run.buffers[slot] = start, start + size

    return step


def _access(op: ir.Operation, buffer: ir.Value, type_: ir.Type) -> Step:
    writes, layout = op.name == "tgpu.local_store", layout_name(type_) or ""

    def step(run: Run) -> None:
        run.events.append(Event(op, False, *run.buffers[buffer], writes, layout))

    return step


def _upstream(op: ir.Operation) -> Step | None:
    match op.name:
        case "scf.for":
            return _for(op)
        case "scf.if":
            sides = [steps(block) for region in op.regions for block in region.blocks]
            sides += [[]] * (2 - len(sides))
            return lambda run: _all(sides[run.choose(2)], run)
        case "arith.constant":
            attribute = op.attributes["value"]
            number = attribute.value if isinstance(attribute, ir.IntegerAttr) else 0
            result = op.results[0]
            return lambda run: run.values.update({result: number})
        case "arith.addi" | "arith.remsi" | "arith.cmpi" | "arith.select":
            return _compute(op)
        case _:
            return None


def _compute(op: ir.Operation) -> Step:
    operands, result, name = list(op.operands), op.results[0], op.name

    def step(run: Run) -> None:
        a, b, *c = (run.values[value] for value in operands)
        table = {"arith.addi": a + b, "arith.cmpi": int(a == b), "arith.remsi": a % (b or 1)}
        run.values[result] = table[name] if name in table else (b if a else c[0])

    return step


def _for(op: ir.Operation) -> Step:
    block = op.regions[0].blocks[0]
    inside, arguments = steps(block), list(block.arguments)
    first, following = list(op.operands)[3:], list(terminator(block).operands)
    most = PIPELINE_TRIPS if first else MOST_TRIPS

    def step(run: Run) -> None:
        carried = [run.values[value] for value in first]
        for trip in range(run.choose(most + 1)):
            run.values.update(zip(arguments, [trip, *carried], strict=True))
            _all(inside, run)
            carried = [run.values[value] for value in following]

    return step


def runs(module: ir.Module) -> list[list[Event]]:
    """Give the events of the runs of a module's kernel, the first `MOST_RUNS` of them."""
    (kernel,) = kernels(module)
    program = steps(body(kernel))
    found: list[list[Event]] = []
    choices: list[int] = []
    while len(found) < MOST_RUNS:
        run = Run(choices)
        _all(program, run)
        found.append(run.events)
        # Count up, the last choice fastest.
        choices = [*choices, *[0] * (len(run.limits) - len(choices))][: len(run.limits)]
        while choices and choices[-1] + 1 >= run.limits[len(choices) - 1]:
            choices.pop()
        if not choices:
            break
        choices[-1] += 1
    return found


def race(
    every: Sequence[Sequence[Event]], without: ir.Operation | None = None
) -> tuple[Event, Event] | None:
    """Find two accesses that race, taking one barrier for absent."""
    for events in every:
        since: list[Event] = []
        for event in events:
            if event.is_barrier:
                if without is None or event.op != without:
                    since = []
                continue
            found = next((old for old in since if old.races(event)), None)
            if found is not None:
                return found, event
            since.append(event)
    return None
