"""3. Layer norm forward: loops with tiles carried through them.

Rows may be longer than a tile, so the program walks over the row. The sums are tiles that the loop
carries: an ordinary `for` over a run-time range, an ordinary `+=`. Only after the loop are they
reduced to scalars.
"""

import numpy as np

import tiledsl as tile


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


def layer_norm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the layer norm of each row of a matrix, the rows' means and reciprocal deviations."""
    rows, columns = x.shape
    out = np.empty_like(x)
    mean, rstd = np.empty((2, rows), np.float32)
    block = min(1024, tile.next_power_of_2(columns))
    layer_norm_row[(rows,)](x, weight, bias, out, mean, rstd, columns, columns, eps, BLOCK=block)
    return out, mean, rstd


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((37, 3000), dtype=np.float32)
    weight, bias = rng.standard_normal((2, 3000), dtype=np.float32)
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
