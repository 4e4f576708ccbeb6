"""Constexprs computed from a call's other arguments."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownLambdaType=false

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.dialects.diagnostics import KernelError


@tile.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
                  "BOTH": lambda args: (args["EVEN"], args["num_warps"])})  # fmt: skip
@tile.jit
def kernel(out, n, BLOCK: tile.constexpr, EVEN: tile.constexpr, BOTH: tile.constexpr):
    tile.store(out, 1 if EVEN else 2)
    tile.store(out + 1, BOTH[1])


def run(**arguments: Any) -> list[int]:
    out = np.zeros(2, np.int32)
    kernel[1](out, num_warps=2, **arguments)
    return out.tolist()


def test_a_rule_sees_the_arguments_by_name_and_the_rules_before_it() -> None:
    assert run(n=8, BLOCK=4) == [1, 2]
    assert run(n=9, BLOCK=4) == [2, 2]


def test_the_configuration_of_tuning_above_counts_among_the_arguments() -> None:
    configs = [tile.Config({"BLOCK": 4}, num_warps=8)]
    tuned = tile.autotune(configs)(kernel)
    out = np.zeros(2, np.int32)
    tuned[1](out, 8)
    assert out.tolist() == [1, 8]


def test_rules_may_stand_above_tuning_too() -> None:
    @tile.jit
    def inner(out, n, BLOCK: tile.constexpr, EVEN: tile.constexpr):
        tile.store(out, BLOCK if EVEN else -BLOCK)

    tuned = tile.autotune([tile.Config({"BLOCK": 4})])(inner)
    ruled = tile.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})(tuned)
    out = np.zeros(1, np.int32)
    for n, expected in ((2, 4), (3, -4)):
        ruled[1](out, n)
        assert out[0] == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tile.heuristics({"ODD": len})(kernel),
            "tile.heuristics: kernel `kernel` has no parameter `ODD`\n"
            "  hint: parameters: out, n, BLOCK, EVEN, BOTH",
        ),
        (
            lambda: tile.heuristics({})(3),  # pyright: ignore[reportArgumentType]
            "tile.heuristics: expected a kernel, found int (3)\n"
            "  hint: put @tile.heuristics above @tile.jit",
        ),
        (
            lambda: kernel[1](np.zeros(1, np.int32), 8, 4, True),
            "kernel `kernel`: argument `EVEN` is decided by tile.heuristics, found it given",
        ),
        (
            lambda: kernel(3),
            "expected `kernel` to be launched with a grid, found it called\n"
            "  hint: launch kernel[grid](...); inside a kernel, call kernel.fn(...)",
        ),
        (
            lambda: tile.compile(kernel, {}),  # pyright: ignore[reportArgumentType]
            "compile: expected a kernel, found tiledsl.heuristics.Heuristics "
            "(<tile.heuristics of <tile.jit kernel ker)\n"
            "  hint: a tuned kernel's own is its `.fn`",
        ),
    ],
)
def test_a_wrong_use_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(KernelError) as raised:
        make()
    assert str(raised.value) == message


def test_it_is_pickled_by_name_and_copied_as_itself() -> None:
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy(kernel) is kernel
