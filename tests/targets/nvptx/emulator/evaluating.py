"""Execute one PTX instruction on columns of operands: the property tests' way into the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import run

_REGISTER = {1: "h", 2: "h", 4: "r", 8: "d"}
_NAMES = "abcef"


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    size = 1 if array.dtype == np.bool_ else array.dtype.itemsize
    return np.ascontiguousarray(array).view(f"u{size}")


def _load(name: str, number: int, array: NDArray[Any]) -> list[str]:
    size = array.dtype.itemsize
    lines = [f"mad.wide.u32 %d60, %r60, {size}, %a{number};"]
    if array.dtype == np.bool_:
        return [*lines, "ld.global.u8 %h60, [%d60];", f"setp.ne.u16 {name}, %h60, 0;"]
    return [*lines, f"ld.global.b{8 * size} {name}, [%d60];"]


def _store(name: str, number: int, kind: np.dtype[Any]) -> list[str]:
    lines = [f"mad.wide.u32 %d60, %r60, {kind.itemsize}, %a{number};"]
    if kind == np.bool_:
        return [*lines, f"selp.u16 %h60, 1, 0, {name};", "st.global.u8 [%d60], %h60;"]
    return [*lines, f"st.global.b{8 * kind.itemsize} [%d60], {name};"]


def _register(kind: np.dtype[Any], number: int) -> str:
    return f"%{'p' if kind == np.bool_ else _REGISTER[kind.itemsize]}{number}"


@dataclass(frozen=True)
class Columns:
    """One instruction on columns of operands, as a kernel of 32 threads a block.

    Attributes:
        body: The kernel's body.
        arrays: What it is given: the operands, then zeros for the results.
        blocks: How many blocks it has.
        rows: How many rows the operands had.
        results: The NumPy type of each result.
    """

    body: str
    arrays: list[NDArray[Any]]
    blocks: int
    rows: int
    results: list[np.dtype[Any]]

    def found(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the results' columns of the arrays that the kernel left."""
        last = arrays[len(self.arrays) - len(self.results) :]
        return [
            array.view(kind)[: self.rows] for array, kind in zip(last, self.results, strict=True)
        ]


def columns_of(line: str, inputs: Sequence[NDArray[Any]], results: tuple[Any, ...]) -> Columns:
    """Return the kernel that executes an instruction for each row; see `evaluate`."""
    count = len(inputs[0])
    threads = -(-count // 32) * 32
    columns = [np.resize(array, threads) for array in inputs]
    kinds = [np.dtype(one) for one in results]
    names = {
        n: _register(a.dtype, 10 + i) for i, (n, a) in enumerate(zip(_NAMES, columns, strict=False))
    }
    names |= {
        n: _register(kind, 30 + i) for i, (n, kind) in enumerate(zip("dq", kinds, strict=False))
    }
    body = ["mov.u32 %r61, %ctaid.x;", "mov.u32 %r62, %ntid.x;"]
    body += ["mad.lo.u32 %r60, %r61, %r62, %t;"]
    for i, (name, array) in enumerate(zip(_NAMES, columns, strict=False)):
        body += _load(names[name], i, array)
    body.append(line.format(**names) + ";")
    for i, (name, kind) in enumerate(zip("dq", kinds, strict=False)):
        body += _store(names[name], len(columns) + i, kind)
    empty = [np.zeros(threads, kind) for kind in kinds]
    given = [array.view(np.uint8) if array.dtype == np.bool_ else array for array in columns]
    return Columns("\n".join(body), [*given, *empty], threads // 32, count, kinds)


def evaluate(
    line: str, *inputs: NDArray[Any], results: tuple[Any, ...], chip: str = "sm_100a"
) -> list[NDArray[Any]]:
    """Return what an instruction computes for each row of the inputs.

    Args:
        line: The instruction; {d} and {q} stand for its results, {a}, {b}, {c}, {e}, {f} for operands.
        inputs: One array an operand, of a type as wide as its register (bool: a predicate).
        results: The NumPy type of each result.
        chip: What to run on.
    """
    columns = columns_of(line, inputs, results)
    outcome = run(columns.body, *columns.arrays, chip=chip, threads=32, blocks=columns.blocks)
    assert not outcome.findings, outcome.findings[0]
    return columns.found(outcome.arrays)


def bits_of(array: NDArray[Any]) -> list[int]:
    """Return values as the unsigned integers that their bits are."""
    return [int(one) for one in _unsigned(array)]
