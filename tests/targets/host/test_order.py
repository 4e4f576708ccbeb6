"""Lanes lie along the dimension that memory runs along, whatever the tile's shape says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.dialects.context import context
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.cpu import describe
from tiledsl.targets.host.transpose import transposed

from .kernels import Kernel

WIDE = describe("x86_64", "znver4", frozenset({"avx512f", "avx512bw", "avx512vl"}), "")


def scattered(k: Kernel) -> int:
    """Return how many accesses of a kernel are gathers or scatters."""
    text = k.artifact.texts["llvm"]
    assert isinstance(text, str)
    return sum(
        "call" in line and ("gather" in line or "scatter" in line) for line in text.split("\n")
    )


def test_a_copy_of_columns_goes_along_columns() -> None:
    k = Kernel("*f32", "*f32", "i32", cpu=WIDE)
    x, y, n = k.args
    at = k.range(64)[:, None] + k.range(32)[None, :] * 64
    mask = k.range(64)[:, None] < n
    k.store(y + at, k.load(x + at, mask) * 2.0, mask)
    data = np.random.default_rng(0).random((32, 64), dtype=np.float32)
    found = np.zeros_like(data)
    k.run(1, data, found, 61)
    assert (found[:, :61] == data[:, :61] * 2).all()
    assert not found[:, 61:].any()
    assert scattered(k) == 0


@pytest.mark.parametrize("name", ["f32", "i8", "f64"])
@pytest.mark.parametrize("shape", [(64, 32), (16, 128), (4, 32, 16)])
def test_a_transposed_copy_moves_squares_of_vectors(name: str, shape: tuple[int, ...]) -> None:
    dtype = {"f32": np.float32, "i8": np.int8, "f64": np.float64}[name]
    k = Kernel(f"*{name}", f"*{name}", cpu=WIDE)
    x, y = k.args
    rows, columns = shape[-2:]
    batch = shape[0] if len(shape) == 3 else 1
    size = batch * rows * columns
    b = k.range(batch)[:, None, None] * (rows * columns)
    i, j = k.range(rows)[None, :, None], k.range(columns)[None, None, :]
    k.store(y + (b + i * columns + j), k.load(x + (b + i + j * rows)))
    k.store(y + (size + b + i + j * rows), k.load(y + (b + i * columns + j)))
    data: Any = np.arange(batch * rows * columns).astype(dtype).reshape(batch, columns, rows)
    found = np.zeros((2, data.size), dtype)
    k.run(1, data, found)
    assert (found[0] == data.transpose(0, 2, 1).ravel()).all()
    assert (found[1] == data.ravel()).all()
    assert scattered(k) == 0


def test_a_product_packs_transposed_operands_without_gathers() -> None:
    k = Kernel("*f32", "*f32", "*f32", cpu=WIDE)
    a, b, c = k.args
    i, j = k.range(32)[:, None], k.range(32)[None, :]
    x, y = k.load(a + (i + j * 32)), k.load(b + (i * 32 + j)).trans(1, 0)
    k.store(c + (i * 32 + j), k.dot(x, y, k.full((32, 32), 0, "f32")))
    rng = np.random.default_rng(0)
    first, second = (np.floor(rng.random((32, 32), dtype=np.float32) * 8) for _ in range(2))
    found = np.zeros((32, 32), np.float32)
    k.run(1, first, second, found)
    assert (found == first.T @ second.T).all()
    assert scattered(k) == 0


def test_a_reduction_reads_along_memory() -> None:
    k = Kernel("*f32", "*f32", "*f32", cpu=WIDE)
    x, rows, columns = k.args
    i, j = k.range(64)[:, None], k.range(32)[None, :]
    k.store(rows + k.range(64), k.reduce(k.load(x + (i + j * 64)), 1, "arith.addf"))
    k.store(columns + k.range(32), k.reduce(k.load(x + (i + j * 64)) + 1.0, 0, "arith.addf"))
    data = np.floor(np.random.default_rng(0).random((32, 64), dtype=np.float32) * 8)
    totals = np.zeros(64, np.float32), np.zeros(32, np.float32)
    k.run(1, data, *totals)
    assert (totals[0] == data.sum(0)).all()
    assert (totals[1] == data.sum(1) + 64).all()
    assert scattered(k) == 0


def test_transposing_twice_gives_the_rows_back() -> None:
    """The butterfly is its own inverse: shown on the masks of the shuffles that it emits."""

    class Shuffles(Code):
        def __init__(self) -> None:
            pass

        def interleave(self, a: Any, b: Any, picks: Any, at: Any) -> Any:
            return [(a + b)[pick] for pick in picks]

    rows: Any = [[(row, lane) for lane in range(8)] for row in range(8)]
    with context():
        columns: Any = transposed(Shuffles(), rows, None)  # type: ignore[arg-type]
    assert columns == [[(row, lane) for row in range(8)] for lane in range(8)]
