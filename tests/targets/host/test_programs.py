"""Random programs of loads, stores, products, loops and branches, against a plain interpreter.

A program is a tree of statements over 16 x 16 tiles of i32 and one stretch of memory that they read
and write in overlapping ways. It is built as a kernel and interpreted on NumPy arrays; every tile
and all of memory must agree. What is kept, fused or written in place shows nowhere else so well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from .kernels import Kernel, Tile

SIDE = 16
MEMORY = 4 * SIDE * SIDE
Array = np.ndarray[Any, Any]
LAYOUTS = {
    "rows": (0, SIDE, 1),
    "shifted": (5, SIDE, 1),
    "columns": (0, 1, SIDE),
    "wide": (64, 33, 1),
}
"""Start, row stride and column stride of the places that loads and stores address."""
BINARY = ("add", "sub", "mul", "xor", "max", "div")
UNARY = ("trans", "rows", "columns", "scan", "flip", "halves")


@dataclass
class Load:
    layout: str


@dataclass
class Store:
    layout: str
    value: int


@dataclass
class Compute:
    name: str
    operands: tuple[int, ...]


@dataclass
class Loop:
    trips: int
    carried: list[int]
    body: Block
    by_while: bool


@dataclass
class Branch:
    bit: int
    sides: tuple[Block, Block]


@dataclass
class Block:
    """Statements, each of which may add values to those in scope; then the values handed on."""

    statements: list[Statement] = field(default_factory=lambda: list[Statement]())
    results: list[int] = field(default_factory=list[int])


Statement: TypeAlias = Load | Store | Compute | Loop | Branch


@st.composite
def blocks(draw: st.DrawFn, scope: int, depth: int, results: int) -> Block:
    """Draw a block that may use `scope` values."""
    block = Block()
    for _ in range(draw(st.integers(1, 5 if depth == 0 else 3))):
        statement = draw(statements(scope, depth))
        block.statements.append(statement)
        match statement:
            case Loop():
                scope += len(statement.carried)
            case Branch():
                scope += len(statement.sides[0].results)
            case Store():
                pass
            case _:
                scope += 1
    block.results = [draw(st.integers(0, scope - 1)) for _ in range(results)]
    return block


@st.composite
def statements(draw: st.DrawFn, scope: int, depth: int) -> Statement:
    value = st.integers(0, scope - 1)
    kinds = ["load", "store", "store", "binary", "binary", "unary", "dot"]
    kinds += ["loop", "loop", "branch"] if depth < 2 else []
    match draw(st.sampled_from(kinds)):
        case "load":
            return Load(draw(st.sampled_from(list(LAYOUTS))))
        case "store":
            return Store(draw(st.sampled_from(list(LAYOUTS))), draw(value))
        case "binary":
            return Compute(draw(st.sampled_from(BINARY)), (draw(value), draw(value)))
        case "unary":
            return Compute(draw(st.sampled_from(UNARY)), (draw(value),))
        case "dot":
            return Compute("dot", (draw(value), draw(value), draw(value)))
        case "loop":
            carried = draw(st.lists(value, min_size=1, max_size=3))
            body = draw(blocks(scope + len(carried), depth + 1, len(carried)))
            return Loop(draw(st.integers(0, 3)), carried, body, draw(st.booleans()))
        case _:
            count = draw(st.integers(1, 2))
            sides = [draw(blocks(scope, depth + 1, count)) for _ in range(2)]
            return Branch(draw(st.integers(0, 2)), (sides[0], sides[1]))


class Interpreter:
    """Runs a program on arrays."""

    def __init__(self, memory: Array, flags: int) -> None:
        self._memory = memory
        self._flags = flags

    def places(self, layout: str) -> Array:
        start, down, across = LAYOUTS[layout]
        i, j = np.indices((SIDE, SIDE))
        return start + i * down + j * across

    def run(self, block: Block, scope: list[Array]) -> list[Array]:
        scope = list(scope)
        for statement in block.statements:
            match statement:
                case Load(layout):
                    scope.append(self._memory[self.places(layout)])
                case Store(layout, value):
                    self._memory[self.places(layout)] = scope[value]
                case Compute(name, operands):
                    scope.append(compute(name, [scope[o] for o in operands]))
                case Loop():
                    carried = [scope[c] for c in statement.carried]
                    for _ in range(statement.trips):
                        carried = self.run(statement.body, scope + carried)
                    scope += carried
                case Branch(bit, sides):
                    scope += self.run(sides[0 if self._flags >> bit & 1 else 1], scope)
        return [scope[result] for result in block.results]


def compute(name: str, values: list[Array]) -> Array:
    a, b = values[0], values[-1]
    match name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "xor":
            return a ^ b
        case "max":
            return np.maximum(a, b)
        case "div":
            return (np.trunc(a / 7.0).astype(np.int32)) + b
        case "trans":
            return a.T
        case "rows":
            return np.broadcast_to(a.sum(1, dtype=np.int32)[:, None], a.shape)
        case "columns":
            return np.broadcast_to(a.max(0)[None, :], a.shape)
        case "scan":
            return a.cumsum(1, dtype=np.int32)
        case "flip":
            return a.reshape(4, 64).T.reshape(SIDE, SIDE)
        case "halves":
            return np.stack([a[:8], a[8:]], -1).reshape(SIDE, SIDE)
        case _:
            return values[0] @ values[1] + values[2]


class Builder:
    """Builds a program as a kernel."""

    def __init__(self) -> None:
        self.kernel = Kernel("*i32", "*i32", "i32")
        self._memory, self._out, self._flags = self.kernel.args

    def places(self, layout: str) -> Tile:
        start, down, across = LAYOUTS[layout]
        k = self.kernel
        return self._memory + (
            k.range(SIDE)[:, None] * down + (k.range(SIDE)[None, :] * across + start)
        )

    def run(self, block: Block, scope: list[Tile]) -> list[Tile]:
        scope = list(scope)
        for statement in block.statements:
            match statement:
                case Load(layout):
                    scope.append(self.kernel.load(self.places(layout)))
                case Store(layout, value):
                    self.kernel.store(self.places(layout), scope[value])
                case Compute(name, operands):
                    scope.append(self.compute(name, [scope[o] for o in operands]))
                case Loop():
                    scope += self.loop(statement, scope)
                case Branch():
                    scope += self.branch(statement, scope)
        return [scope[result] for result in block.results]

    def branch(self, branch: Branch, scope: list[Tile]) -> list[Tile]:
        flag = (self._flags & (1 << branch.bit)).ne(0)
        first, second = (partial(self.run, side, scope) for side in branch.sides)
        return self.kernel.if_(flag, first, second)

    def loop(self, loop: Loop, scope: list[Tile]) -> list[Tile]:
        k = self.kernel
        carried = [scope[c] for c in loop.carried]
        if not loop.by_while:
            trips = self._flags * 0 + loop.trips

            def body(_: Tile, *tiles: Tile) -> list[Tile]:
                return self.run(loop.body, [*scope, *tiles])

            return k.loop(0, trips, 1, carried, body)

        def test(step: Tile, *tiles: Tile) -> Tile:
            return step < loop.trips

        def trip(step: Tile, *tiles: Tile) -> list[Tile]:
            return [step + 1, *self.run(loop.body, [*scope, *tiles])]

        return k.while_([self._flags * 0, *carried], test, trip)[1:]

    def compute(self, name: str, values: list[Tile]) -> Tile:
        k, a, b = self.kernel, values[0], values[-1]
        match name:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return a * b
            case "xor":
                return a ^ b
            case "max":
                return k.op("arith.maxsi", a, b)
            case "div":
                return k.op("arith.divsi", a, k.full((SIDE, SIDE), 7, "i32")) + b
            case "trans":
                return a.trans(1, 0)
            case "rows":
                return k.broadcast(k.reduce(a, 1, "arith.addi")[:, None], (SIDE, SIDE))
            case "columns":
                return k.broadcast(k.reduce(a, 0, "arith.maxsi")[None, :], (SIDE, SIDE))
            case "scan":
                return k.scan(a, 1, "arith.addi")
            case "flip":
                return a.reshape(4, 64).trans(1, 0).reshape(SIDE, SIDE)
            case "halves":
                first, second = k.split(a.reshape(2, 8, SIDE).trans(1, 2, 0))
                return k.join(first, second).reshape(SIDE, SIDE)
            case _:
                return k.dot(values[0], values[1], values[2])

    def finish(self, results: list[Tile]) -> None:
        k = self.kernel
        flat = k.range(SIDE)[:, None] * SIDE + k.range(SIDE)[None, :]
        for number, result in enumerate(results):
            k.store(self._out + (flat + number * SIDE * SIDE), result)


@settings(max_examples=25, deadline=None)
@given(blocks(1, 0, 3), st.integers(0, 7))
def test_random_programs_do_what_an_interpreter_does(program: Block, flags: int) -> None:
    builder = Builder()
    k = builder.kernel
    start = k.range(SIDE)[:, None] * k.range(SIDE)[None, :]
    builder.finish(builder.run(program, [start]))
    rng = np.random.default_rng(0)
    memory = rng.integers(-100, 100, MEMORY).astype(np.int32)
    wanted = memory.copy()
    first = np.arange(SIDE, dtype=np.int32)
    results = Interpreter(wanted, flags).run(program, [first[:, None] * first[None, :]])
    found = np.zeros((3, SIDE, SIDE), np.int32)
    k.run(1, memory, found, flags)
    assert (memory == wanted).all()
    assert all((f == r).all() for f, r in zip(found, results, strict=True))
