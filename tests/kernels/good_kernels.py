"""Eleven kernels that are right on every target, for planting faults in: what emulators must notice.

Between them they use what kernels synchronize for: masks, reductions and scans across warps,
conversions of layouts, pipelined copies, matrix products, atomics, values that programs hand over.
Each is launched with several sizes, all of them ragged: for each predicate there is one where it is
false for some lanes, one where it is false for whole warps, and kernels have one path for vectors
and one for single elements. Rows end before the next ones begin; what is between them no kernel may read (`PADDING`,
which counts as never written) or write (77).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tiledsl as tile

PADDING = b"\xd5\x7f"
"""Repeated: a NaN in every format, and no number that occurs."""

_EXAMPLES = Path(__file__).parents[2] / "examples"
_CHUNKS = range(60, 1024, 128)
"""Sizes of which each ends within another of the pieces of 128 that 1024 elements are made of."""


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


def padded(array: Any, columns: int) -> Any:
    """Return a matrix with `PADDING` behind each row up to a number of columns."""
    wide = np.empty((array.shape[0], columns), array.dtype)
    wide.view(np.uint8).reshape(-1, 2)[:] = np.frombuffer(PADDING, np.uint8)
    wide[:, : array.shape[1]] = array
    return wide


def _out(*shape: int, dtype: Any = np.float32) -> Any:
    return np.full(shape, 77, dtype)


def add() -> None:
    for n in (*(1024 + size for size in _CHUNKS), 1502, 1086, 20, 22):
        _example("ex01_vector_add").vector_add(_normal(n), _normal(n))


@tile.jit
def softmax_row(x, out, row_stride, columns, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    column = tile.arange(0, BLOCK)
    mask = column < columns
    values = tile.load(x + row * row_stride + column, mask=mask, other=-float("inf"))
    values = values.to(tile.float32)
    exponentials = tile.exp(values - tile.max(values, axis=0))
    result = exponentials / tile.sum(exponentials, axis=0)
    tile.store(out + row * row_stride + column, result.to(out.dtype.element_ty), mask=mask)


def softmax() -> None:
    for n in (*_CHUNKS, 702, 190, 62):
        x = padded(_normal(2, n), 1040)
        softmax_row[2,](x, _out(2, 1040), 1040, n, BLOCK=1024)


@tile.jit
def layer_norm_row(
    x, weight, bias, out, mean_out, rstd_out, stride, columns, eps, BLOCK: tile.constexpr
):
    row = tile.program_id(0)
    x += row * stride
    out += row * stride
    lane = tile.arange(0, BLOCK)

    total = tile.zeros((BLOCK,), tile.float32)
    for start in range(0, columns, BLOCK):
        column = start + lane
        total += tile.load(x + column, mask=column < columns, other=0.0).to(tile.float32)
    mean = tile.sum(total, axis=0) / columns

    squares = tile.zeros((BLOCK,), tile.float32)
    for start in range(0, columns, BLOCK):
        column = start + lane
        value = tile.load(x + column, mask=column < columns, other=0.0).to(tile.float32)
        centered = tile.where(column < columns, value - mean, 0.0)
        squares += centered * centered
    rstd = 1.0 / tile.sqrt(tile.sum(squares, axis=0) / columns + eps)
    tile.store(mean_out + row, mean)
    tile.store(rstd_out + row, rstd)

    for start in range(0, columns, BLOCK):
        column = start + lane
        mask = column < columns
        value = tile.load(x + column, mask=mask, other=0.0).to(tile.float32)
        scale = tile.load(weight + column, mask=mask).to(tile.float32)
        shift = tile.load(bias + column, mask=mask).to(tile.float32)
        result = (value - mean) * rstd * scale + shift
        tile.store(out + column, result.to(out.dtype.element_ty), mask=mask)


def layer_norm() -> None:
    for n in (*(512 + size for size in _CHUNKS if size < 512), 602, 60, 62):
        x, out = padded(_normal(2, n), 1040), _out(2, 1040)
        sums = _out(2), _out(2)
        layer_norm_row[2,](*(x, _normal(n), _normal(n), out, *sums, 1040, n, 1e-5), BLOCK=512)


def matmul() -> None:
    example = _example("ex04_matmul")
    for m, n, k in ((72, 54, 90), (72, 56, 88), (20, 12, 40), (70, 6, 30)):
        a = padded(_normal(m, k, dtype=np.float16), 104)
        b = padded(_normal(k, n, dtype=np.float16), 72)
        c = _out(m, 72, dtype=np.float16)
        strides = (one for array in (a, b, c) for one in example.strides(array))
        example.matmul[2, 1](
            *(a, b, c, None, m, n, k, *strides),
            *(False, 64, 64, 32),
            num_warps=4,
        )


@tile.jit
def attention_kernel(q, k, v, out, length, scale, BLOCK: tile.constexpr, D: tile.constexpr):
    rows = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    lane, depth = tile.arange(0, BLOCK), tile.arange(0, D)
    at = rows[:, None] * D + depth[None, :]
    queries = tile.load(q + at, mask=rows[:, None] < length, other=0.0)
    best = tile.full((BLOCK,), -float("inf"), tile.float32)
    total = tile.zeros((BLOCK,), tile.float32)
    acc = tile.zeros((BLOCK, D), tile.float32)
    for start in range(0, tile.minimum(length, (tile.program_id(0) + 1) * BLOCK), BLOCK):
        columns = start + lane
        seen = columns < length
        keys = tile.load(k + columns[None, :] * D + depth[:, None], mask=seen[None, :], other=0.0)
        scores = tile.dot(queries, keys) * scale
        scores = tile.where(
            seen[None, :] & (columns[None, :] <= rows[:, None]), scores, -float("inf")
        )
        new_best = tile.maximum(best, tile.max(scores, axis=1))
        weights = tile.exp2(scores - new_best[:, None])
        rescale = tile.exp2(best - new_best)
        total = total * rescale + tile.sum(weights, axis=1)
        values = tile.load(v + columns[:, None] * D + depth[None, :], mask=seen[:, None], other=0.0)
        acc = tile.dot(weights.to(tile.float16), values, acc * rescale[:, None])
        best = new_best
    result = (acc / total[:, None]).to(tile.float16)
    tile.store(out + at, result, mask=rows[:, None] < length)


def attention() -> None:
    for length in (100, 70, 12):
        q, k, v = (_normal(length, 32, dtype=np.float16) for _ in range(3))
        attention_kernel[tile.cdiv(length, 64),](
            *(q, k + k[:, ::-1], v, _out(length, 32, dtype=np.float16), length, 0.25),
            BLOCK=64,
            D=32,
            num_warps=4,
            num_stages=2,
        )


def box_attention() -> None:
    """Attend by TMA: long enough that every slot of its rings is filled again."""
    for length in (450, 12):
        q, k, v = (_normal(1, length, 32, dtype=np.float16) for _ in range(3))
        _example("ex05_attention").attention(q, k + k[:, ::-1], v, causal=True)


@tile.jit
def scan_kernel(x, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.store(out + i, tile.cumsum(value, axis=0), mask=i < n)


def scan() -> None:
    for n in (1002, *_CHUNKS, 62):
        x = np.arange(n, dtype=np.int32)
        scan_kernel[1,](x, np.full_like(x, 77), n, BLOCK=1024)


@tile.jit
def argmax_kernel(x, out, rows, columns, stride, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.arange(0, M), tile.arange(0, N)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    value = tile.load(x + i[:, None] * stride + j[None, :], mask=inside, other=-float("inf"))
    tile.store(out + j, tile.argmax(value, axis=0).to(tile.int32), mask=j < columns)


def argmax() -> None:
    for m, n in ((60, 30), (60, 28), (20, 4), (5, 10)):
        x = padded(_normal(m, n), 40)
        argmax_kernel[1,](x, _out(n, dtype=np.int32), m, n, 40, M=64, N=32)


@tile.jit
def histogram_kernel(x, bins, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.atomic_add(bins + value, 1, mask=i < n)


def histogram() -> None:
    for n in (702, 700, *(512 + size for size in _CHUNKS if size < 512), 20):
        x = np.random.default_rng(0).integers(0, 10, n).astype(np.int32)
        histogram_kernel[2,](x, np.zeros(10, np.int32), n, BLOCK=512)


@tile.jit
def transpose_kernel(x, out, m, n, x_stride, stride, M: tile.constexpr, N: tile.constexpr):
    i, j = tile.arange(0, M), tile.arange(0, N)
    value = tile.load(
        x + i[:, None] * x_stride + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n), other=0
    )
    tile.store(
        out + j[:, None] * stride + i[None, :],
        tile.trans(value),
        mask=(j[:, None] < n) & (i[None, :] < m),
    )


def transpose() -> None:
    for m, n in ((62, 50), (60, 44), (20, 28), (36, 4)):
        x, out = padded(_normal(m, n) + 1, 72), _out(n, m + 4)
        transpose_kernel[1,](x, out, m, n, 72, m + 4, M=64, N=64)


@tile.jit
def chained_kernel(a, b, c, out, N: tile.constexpr):
    i = tile.arange(0, N)
    at = i[:, None] * N + i[None, :]
    left = tile.dot(tile.load(a + at), tile.load(b + at))
    tile.store(out + at, tile.dot(left.to(tile.bfloat16), tile.load(c + at)))


def chained() -> None:
    import ml_dtypes

    a, b, c = (_normal(64, 64, dtype=ml_dtypes.bfloat16) for _ in range(3))
    chained_kernel[1,](a, b, c + c.T, _out(64, 64), N=64)


@tile.jit
def handed_over_kernel(x, parts, tickets, out, n, BLOCK: tile.constexpr, PARTS: tile.constexpr):
    part = tile.program_id(0)
    lane = tile.arange(0, BLOCK)
    at = part * BLOCK + lane
    tile.store(parts + at, tile.load(x + at, mask=at < n, other=0) * 2)
    if tile.atomic_add(tickets, 1, sem="acq_rel") == PARTS - 1:
        total = tile.zeros((BLOCK,), tile.float32)
        for other in range(PARTS):
            total = total + tile.load(parts + other * BLOCK + lane)
        tile.store(out + lane, total)


def handed_over() -> None:
    """Let the last program read what the others stored: its atomic orders them."""
    for n in (1020, 602, 90):
        tickets = np.zeros(1, np.int32)
        handed_over_kernel[4,](_normal(n), _out(1024), tickets, _out(256), n, BLOCK=256, PARTS=4)


GOOD: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        *(add, softmax, layer_norm, matmul, attention),
        *(scan, argmax, histogram, transpose, chained, handed_over),
    )
}
"""By name."""

GOOD_ON_HOPPER: dict[str, Callable[[], None]] = {"box_attention": box_attention}
"""Those that are different there: the eleven use no mbarriers."""
