"""3. Layer norm forward: loops with tiles carried through them.

The variance is that of differences from the mean: one reduction waits for another, and the result
for both. A row of up to 16384 elements stays on the chip all that time, 32 elements a thread, as in
the softmax; half as many where it does not begin at a multiple of 16 bytes. Of longer ones too few
have room on a processor, and memory idles while they are reduced. So `layer_norm_long_rows` walks
over the row, three times, in ordinary loops whose sums are tiles carried by an ordinary `+=`; only
after a loop are they reduced to scalars. The second and third time the row comes from the cache.
With a few registers a thread all threads of a processor are busy, and rows may be of any length.
The bounds of these loops are constants, and `range` would unroll them as Python does: `tile.range`
makes loops of the kernel.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def layer_norm_rows(
    x, weight, bias, out, mean_out, rstd_out, rows, eps,
    COLUMNS: tile.constexpr, ROWS: tile.constexpr, BLOCK: tile.constexpr,
):  # fmt: skip
    row = tile.program_id(0) * ROWS + tile.arange(0, ROWS)[:, None]
    column = tile.arange(0, BLOCK)[None, :]
    exists, inside = row < rows, column < COLUMNS
    at = row * COLUMNS + column
    values = tile.load(x + at, exists & inside).to(tile.float32)
    mean = tile.sum(values, axis=1, keep_dims=True) / COLUMNS
    centered = tile.where(inside, values - mean, 0.0)
    variance = tile.sum(centered * centered, axis=1, keep_dims=True) / COLUMNS
    rstd = 1.0 / tile.sqrt(variance + eps)
    scale = tile.load(weight + column, inside).to(tile.float32)
    shift = tile.load(bias + column, inside).to(tile.float32)
    result = centered * rstd * scale + shift
    tile.store(out + at, result.to(out.dtype.element_ty), exists & inside)
    tile.store(mean_out + row, mean, exists)
    tile.store(rstd_out + row, rstd, exists)


@tile.jit
def layer_norm_long_rows(
    x, weight, bias, out, mean_out, rstd_out, eps,
    COLUMNS: tile.constexpr, BLOCK: tile.constexpr,
):  # fmt: skip
    row = tile.program_id(0)
    x += row * COLUMNS
    out += row * COLUMNS
    lane = tile.arange(0, BLOCK)

    total = tile.zeros((BLOCK,), tile.float32)
    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        total += tile.load(x + column, column < COLUMNS).to(tile.float32)
    mean = tile.sum(total) / COLUMNS

    squares = tile.zeros((BLOCK,), tile.float32)
    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        value = tile.load(x + column, column < COLUMNS).to(tile.float32)
        centered = tile.where(column < COLUMNS, value - mean, 0.0)
        squares += centered * centered
    rstd = 1.0 / tile.sqrt(tile.sum(squares) / COLUMNS + eps)
    tile.store(mean_out + row, mean)
    tile.store(rstd_out + row, rstd)

    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        inside = column < COLUMNS
        value = tile.load(x + column, inside).to(tile.float32)
        scale = tile.load(weight + column, inside).to(tile.float32)
        shift = tile.load(bias + column, inside).to(tile.float32)
        result = (value - mean) * rstd * scale + shift
        tile.store(out + column, result.to(out.dtype.element_ty), inside)


def layer_norm_into(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray,
    out: np.ndarray, mean: np.ndarray, rstd: np.ndarray, eps: float = 1e-5,
) -> None:  # fmt: skip
    """Write the layer norm of each row of a matrix, the rows' means and reciprocal deviations."""
    rows, columns = x.shape
    block = tile.next_power_of_2(columns)
    if block <= (16384 if columns * x.dtype.itemsize % 16 == 0 else 8192):
        # A thread has 32 elements. Programs of two warps at least: a processor takes 32 programs.
        some = max(1, 2048 // block)
        layer_norm_rows[tile.cdiv(rows, some),](
            x, weight, bias, out, mean, rstd, rows, eps,
            COLUMNS=columns, ROWS=some, BLOCK=block, num_warps=max(2, block // 1024),
        )  # fmt: skip
    else:
        # A thread has 8 elements at a time, the most that it can load at once, and a program has at
        # most 1024 threads.
        warps = min(1024 // tile.warp_size(x), block // 1024)
        layer_norm_long_rows[rows,](
            x, weight, bias, out, mean, rstd, eps,
            COLUMNS=columns, BLOCK=8 * tile.warp_size(x) * warps, num_warps=warps,
        )  # fmt: skip


def layer_norm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the layer norm of each row of a matrix, the rows' means and reciprocal deviations."""
    out = np.empty_like(x)
    mean, rstd = np.empty((2, len(x)), np.float32)
    layer_norm_into(x, weight, bias, out, mean, rstd, eps)
    return out, mean, rstd


def main() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((37, 3000), (7, 10_000), (5, 20_000)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        weight, bias = rng.standard_normal((2, columns), dtype=np.float32)
        out, mean, rstd = layer_norm(x, weight, bias)
        wide = x.astype(np.float64)
        centered = wide - wide.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(mean, wide.mean(axis=1), atol=1e-6)
        np.testing.assert_allclose(rstd, 1 / deviation[:, 0], rtol=1e-5)
        np.testing.assert_allclose(out, centered / deviation * weight + bias, atol=1e-4)
    print("layer norm: right to 1e-4")


if __name__ == "__main__":
    main()
    # Next, ex04_matmul.py: matrix products and a fused epilogue.
