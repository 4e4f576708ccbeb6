"""The runner: levels, faults, observers, and room for nests."""

import sys

import pytest
from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import LLVM, TILE
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.transforms.run import MOST_NESTED, Step, Timings, run

MODULE = "module { func.func @k(%x: i32) { return } }"


def nothing(module: ir.Module) -> None:
    """Leave the module as it is."""


def fail(module: ir.Module) -> None:
    raise ValueError("words")


def refuse(module: ir.Module) -> None:
    raise KernelError("wrong")


def recurse(module: ir.Module) -> None:
    """Go as deep as a pass may in the deepest nest."""

    def depth(n: int) -> int:
        return n and 1 + depth(n - 1)

    assert depth(20 * MOST_NESTED) == 20 * MOST_NESTED


def test_each_pass_is_timed_and_named() -> None:
    timings = Timings()
    run(parse(MODULE), [Step(nothing, TILE), Step(nothing, TILE)], [timings])
    assert [name for name, _ in timings.seconds] == ["nothing", "nothing"]


def test_a_fault_is_told_with_the_pass() -> None:
    with pytest.raises(CompilerBug, match="in fail: ValueError: words"):
        run(parse(MODULE), [Step(fail, TILE)])
    with pytest.raises(CompilerBug, match="after nothing: "):
        run(parse(MODULE), [Step(nothing, LLVM)])
    with pytest.raises(KernelError, match="wrong"):
        run(parse(MODULE), [Step(refuse, TILE)])


def test_passes_have_room_for_the_deepest_nest() -> None:
    before = sys.getrecursionlimit()
    run(parse(MODULE), [Step(recurse, TILE)])
    assert sys.getrecursionlimit() == before
