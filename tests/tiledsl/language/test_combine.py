"""Author's combine functions: traced once, straight-line, of their arguments alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlir import ir

import tiledsl as tile
from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects import contracts
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32

RNG = np.random.default_rng(2)


def affine(f1: Any, x1: Any, f2: Any, x2: Any) -> Any:
    return f1 * f2, f2 * x1 + x2


@tile.jit
def larger(a, b):  # pyright: ignore[reportUnknownParameterType]
    if a > b:
        return a
    return b


def symbols(module: ir.Module) -> list[str]:
    return [
        ir.StringAttr(op.operation.attributes["sym_name"]).value for op in module.body.operations
    ]


def test_several_tiles_combine_together_in_order() -> None:
    f, x = np.array([2, 3, 5, 7], np.float32), np.ones(4, np.float32)
    got = evaluated(lambda f, x: tile.associative_scan((f, x), 0, affine), f, x)
    assert [g.tolist() for g in got] == [[2, 6, 30, 210], [1, 4, 21, 148]]
    total = evaluated(lambda f, x: tile.reduce((f, x), 0, affine), f, x)
    assert [int(t) for t in total] == [210, 148]


def test_a_reverse_scan_combines_from_the_end() -> None:
    f, x = RNG.integers(1, 4, (2, 8)).astype(np.int32)
    forward = evaluated(
        lambda f, x: tile.associative_scan((f, x), 0, affine), f[::-1].copy(), x[::-1].copy()
    )
    backward = evaluated(lambda f, x: tile.associative_scan((f, x), 0, affine, reverse=True), f, x)
    for a, b in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(a[::-1], b)


def test_branches_become_selects() -> None:
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_array_equal(evaluated(lambda v: tile.reduce(v, 1, larger), x), x.max(1))
    module = traced(lambda v: tile.reduce(v, 1, larger), (float32, (4, 8)))
    names = {op.operation.name for op in contracts.operations(module.operation)}
    assert "arith.select" in names
    assert "scf.if" not in names


def test_nested_branches_become_selects() -> None:
    def signed_larger(a: Any, b: Any) -> Any:
        if a > 0:  # noqa: SIM108
            r = a if b < a else b
        else:
            r = b
        return r

    x = np.array([1, -5, 7, 3], np.int32)
    assert evaluated(lambda v: tile.reduce(v, 0, signed_larger), x) == 7


def test_a_function_is_traced_once_for_its_types() -> None:
    def kernel(v: Any, n: Any) -> Any:
        return tile.reduce(v, 0, larger), tile.reduce(v + 1, 1, larger), tile.reduce(n, 0, larger)

    module = traced(kernel, (float32, (4, 4)), (int32, (4,)))
    assert symbols(module) == ["f", "larger_fp32", "larger_i32"]


def test_functions_of_one_name_get_symbols_of_their_own() -> None:
    def kernel(v: Any) -> Any:
        return tile.reduce(v, 0, lambda a, b: a * b), tile.reduce(v, 0, lambda a, b: a + b)

    assert symbols(traced(kernel, (float32, (4,)))) == ["f", "lambda_fp32", "lambda_fp32_2"]


def test_python_numbers_take_the_element_type() -> None:
    x = np.arange(4, dtype=np.float32)
    assert evaluated(lambda v: tile.reduce(v, 0, lambda a, b: 7), x) == 7


def message(function: Any, *kinds: Any) -> str:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    return caught.value.message


TILE = (float32, (4,))


def test_wrong_results_get_a_message() -> None:
    def both(a: Any, b: Any) -> Any:
        return a, b

    def compared(a: Any, b: Any) -> Any:
        return a < b

    assert message(lambda v: tile.reduce(v, 0, both), TILE) == (
        "expected `both` to return one value, as it combines, found 2 values"
    )
    assert message(lambda v: tile.reduce((v, v), 0, compared), TILE) == (
        "expected `compared` to take 4 arguments, as it combines 2 values with 2 values, "
        "found compared(a: 'Any', b: 'Any') -> 'Any'"
    )
    assert message(lambda v: tile.reduce((v, v), 0, lambda *x: x[0]), TILE) == (
        "expected `<lambda>` to return 2 values, as it combines, found one value"
    )
    assert message(lambda v: tile.reduce(v, 0, compared), TILE) == (
        "expected `compared` to return a float32 scalar, as it combines, found bool scalar"
    )


def test_loops_memory_and_captures_get_a_message() -> None:
    def looped(a: Any, b: Any) -> Any:
        while a > b:
            a = a - b
        return a

    def stored(a: Any, b: Any) -> Any:
        tile.atomic_add(POINTER[0], 1)
        return a + b

    def captured(a: Any, b: Any) -> Any:
        return a + b * POINTER[1]

    POINTER: list[Any] = [None, None]

    def kernel(v: Any, p: Any, s: Any) -> Any:
        POINTER[:] = p, s
        return tile.reduce(v, 0, CHOSEN[0])

    CHOSEN: list[Any] = [looped]
    kinds = (TILE, tile.pointer_type(int32), float32)
    assert message(kernel, *kinds) == ("expected `looped` to have no run-time loop, as it combines")
    CHOSEN[0] = stored
    assert message(kernel, *kinds) == "expected `stored` to access no memory, as it combines"
    CHOSEN[0] = captured
    assert message(kernel, *kinds) == (
        "expected `captured` to use its arguments alone, as it combines, "
        "found a run-time value from around it"
    )
