"""Kernels that only the benchmarks need: a softmax for its launch, and Triton's of all kinds.

Triton's are written the same way as ours, with the same tiles: descriptors, a loop over tiles and
the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

import tiledsl as tile


@tile.jit
def softmax_row(x, out, stride, columns, BLOCK: tile.constexpr):
    """Compute as `triton_softmax` does, for how long its launch takes."""
    row, column = tile.program_id(0), tile.arange(0, BLOCK)
    mask = column < columns
    values = tile.load(x + row * stride + column, mask, -float("inf")).to(tile.float32)
    e = tile.exp(values - tile.max(values))
    tile.store(out + row * stride + column, (e / tile.sum(e)).to(out.dtype.element_ty), mask)


@triton.jit
def triton_product(
    a, b, c, bias, scale_a, scale_b, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    TURNED: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for number in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        group = number // (GROUP * columns)
        first = group * GROUP
        size = min(rows - first, GROUP)
        m = (first + number % (GROUP * columns) % size) * BLOCK_M
        n = number % (GROUP * columns) // size * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
        for k in range(0, K, BLOCK_K):
            x = a.load([m, k])
            y = b.load([n, k]).T if TURNED else b.load([k, n])
            acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=ACC)
        if bias is not None:
            at = n + tl.arange(0, BLOCK_N)
            x = acc + tl.load(bias + at, at < N, 0.0).to(tl.float32)[None, :]
            acc = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
        if scale_a is not None:
            down, across = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
            acc = acc * tl.load(scale_a + down, down < M, 0.0)[:, None]
            acc = acc * tl.load(scale_b + across, across < N, 0.0)[None, :]
        c.store([m, n], acc.to(c.dtype))


@triton.jit
def triton_product_by_pointers(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply what descriptors cannot describe: rows of no multiple of 16 bytes."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        x = tl.load(
            a + m[:, None] * stride_am + (k0 + k)[None, :] * stride_ak,
            mask=(m[:, None] < M) & ((k0 + k)[None, :] < K),
        )
        y = tl.load(
            b + (k0 + k)[:, None] * stride_bk + n[None, :] * stride_bn,
            mask=((k0 + k)[:, None] < K) & (n[None, :] < N),
        )
        acc = tl.dot(x, y, acc)
    tl.store(
        c + m[:, None] * stride_cm + n[None, :] * stride_cn,
        acc.to(c.dtype.element_ty),
        mask=(m[:, None] < M) & (n[None, :] < N),
    )


@triton.jit
def triton_softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * stride + column, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(values - tl.max(values, axis=0))
    result = e / tl.sum(e, axis=0)
    tl.store(out + row * stride + column, result.to(out.dtype.element_ty), mask)


@triton.jit
def triton_layer_norm(
    x, weight, bias, out, mean_out, rstd_out, stride, columns, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    values = tl.load(x + row * stride + column, mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centered = tl.where(mask, values - mean, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centered * centered, axis=0) / columns + eps)
    w = tl.load(weight + column, mask).to(tl.float32)
    b = tl.load(bias + column, mask).to(tl.float32)
    tl.store(out + row * stride + column, (centered * rstd * w + b).to(out.dtype.element_ty), mask)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
