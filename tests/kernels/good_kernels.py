"""Ten launches that are right on every target, for planting faults in: what an emulator must notice.

Between them they use what kernels synchronize for: masks, reductions and scans across warps,
conversions of layouts, pipelined copies, matrix products, atomics. Sizes are ragged, so that every
mask matters, and some functions launch a kernel with two sizes, for a kernel has one path for
vectors and one for single elements.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tiledsl as tile

_EXAMPLES = Path(__file__).parents[2] / "examples"


def _example(name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def add() -> None:
    for n in (1502, 1500):
        _example("ex01_vector_add").vector_add(_normal(n), _normal(n))


def softmax() -> None:
    for n in (702, 700):
        _example("ex02_softmax").softmax(_normal(8, n))


def layer_norm() -> None:
    for n in (602, 600):
        _example("ex03_layer_norm").layer_norm(_normal(2, n), _normal(n), _normal(n))


def matmul() -> None:
    example = _example("ex04_matmul")
    for k, n in ((90, 54), (88, 56)):
        a, b = _normal(72, k, dtype=np.float16), _normal(k, n, dtype=np.float16)
        c = np.full((72, n + 8), 77, np.float16)  # rows end before the next ones begin
        strides = (one for array in (a, b, c) for one in example.strides(array))
        example.matmul[2, 1](
            *(a, b, c, None, 72, n, k, *strides),
            *(False, 64, 64, 32),
            num_warps=4,
        )


def attention() -> None:
    q, k, v = (_normal(1, 100, 32, dtype=np.float16) for _ in range(3))
    _example("ex05_attention").attention(q, k + k[:, ::-1], v, causal=True)


@tile.jit
def scan_kernel(x, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.store(out + i, tile.cumsum(value, axis=0), mask=i < n)


def scan() -> None:
    for n in (1002, 1000):
        x = np.arange(n, dtype=np.int32)
        scan_kernel[1,](x, np.full_like(x, 77), n, BLOCK=1024)


@tile.jit
def argmax_kernel(x, out, rows, columns, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.arange(0, M), tile.arange(0, N)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    value = tile.load(x + i[:, None] * columns + j[None, :], mask=inside, other=-float("inf"))
    tile.store(out + j, tile.argmax(value, axis=0).to(tile.int32), mask=j < columns)


def argmax() -> None:
    for n in (30, 28):
        argmax_kernel[1,](_normal(60, n), np.full(n, 77, np.int32), 60, n, M=64, N=32)


@tile.jit
def histogram_kernel(x, bins, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.atomic_add(bins + value, 1, mask=i < n)


def histogram() -> None:
    for n in (702, 700):
        x = np.random.default_rng(0).integers(0, 10, n).astype(np.int32)
        histogram_kernel[2,](x, np.zeros(10, np.int32), n, BLOCK=512)


@tile.jit
def transpose_kernel(x, out, m, n, stride, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.arange(0, M), tile.arange(0, N)
    value = tile.load(
        x + i[:, None] * n + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n), other=0
    )
    tile.store(
        out + j[:, None] * stride + i[None, :],
        tile.trans(value),
        mask=(j[:, None] < n) & (i[None, :] < m),
    )


def transpose() -> None:
    for m, n in ((62, 50), (60, 44)):
        # Rows end before the next ones begin: what a mask should keep out shows between them.
        out = np.full((n, m + 4), 77, np.float32)
        transpose_kernel[1,](_normal(m, n) + 1, out, m, n, m + 4, M=64, N=64)


@tile.jit
def chained_kernel(a, b, c, out, N: tile.constexpr):
    i = tile.arange(0, N)
    at = i[:, None] * N + i[None, :]
    left = tile.dot(tile.load(a + at), tile.load(b + at))
    tile.store(out + at, tile.dot(left.to(tile.bfloat16), tile.load(c + at)))


def chained() -> None:
    import ml_dtypes

    a, b, c = (_normal(64, 64, dtype=ml_dtypes.bfloat16) for _ in range(3))
    chained_kernel[1,](a, b, c + c.T, np.full((64, 64), 77, np.float32), N=64)


GOOD: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        *(add, softmax, layer_norm, matmul, attention),
        *(scan, argmax, histogram, transpose, chained),
    )
}
"""By name."""
